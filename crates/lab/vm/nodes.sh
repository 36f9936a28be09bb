# In the guest: three nodes of its own, on its kernel's io_uring or without, and a volume of theirs as a disk of this host by NVMe/TCP with a path to each, while
# they die one after the other. What it has seen is in `seen`.
set -ex
export LOCKSTEP_DIR=/tmp/c PATH=/tmp/bin:$PATH
mkdir /tmp/bin; cp lockstep lockstepd /tmp/bin/
disk=/dev/lockstep/by-res/web/0
trap 'last=$BASH_COMMAND; set +e; tail -n 6 /tmp/c/*/log; dmesg | tail -n 8; tail -n 3 fio; echo "the last command: $last"' EXIT
lockstep dev up --nodes 3 --detach
lockstep resource create web --size 128MiB --replicas 3; lockstep wait web --for in-sync --timeout 240

# As a host does it that has no `lockstep`: one node tells of all.
id=1b4e28ba-2fa1-11d2-883f-0016d3cca427
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 3 ]; }
place=$(lockstep resource show web | grep -o 'nvme+tcp://[^/]*' | head -n 1); place=${place#nvme+tcp://}
nvme connect-all -t tcp -a ${place%:*} -s ${place##*:} -q nqn.2014-08.org.nvmexpress:uuid:$id -I $id
for _ in $(seq 100); do live && ls /dev/nvme*n1 && break; sleep 0.2; done; live; nvme list-subsys
test "$(ls /dev/nvme*n1 | wc -l)" = 1; fio --name=y --filename="$(ls /dev/nvme*n1)" --size=1M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
nvme disconnect-all; test -z "$(ls /sys/class/nvme)"
echo "nvme works: three paths by nvme connect-all to one node" >> seen

lockstep device attach web --via nvme
test "$(lockstep device list --output json | grep -o '"state":"live"' | wc -l)" = 3
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=z --directory=/mnt --size=4M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --fsync=64 --rate_iops=150 --verify=crc32c \
            --verify_fatal=1 --randseed=$RANDOM > fio 2>&1 || return 1
        echo "$(date +%T) verified"
    done
}
(set +x; if load; then echo 0 > /tmp/fio; else echo 1 > /tmp/fio; fi) &
# The load has not ended, and what is asked after it is answered.
flows() { timeout 60 dd if=$disk of=/dev/null bs=4096 count=1 iflag=direct; test ! -e /tmp/fio; }
for node in a b c; do
    sleep 2; flows; lockstep dev kill $node; sleep 1; flows
    lockstep dev start $node; lockstep wait web --for in-sync --timeout 240
done
sleep 2; flows; touch /tmp/enough
for _ in $(seq 24); do [ -e /tmp/fio ] && break; sleep 5; done
tail -n 3 fio; test "$(cat /tmp/fio)" = 0
# All at once.
sync; md5sum /mnt/z.* > /tmp/sum; lockstep dev down; lockstep dev up --detach; lockstep wait web --for in-sync --timeout 240
echo 3 > /proc/sys/vm/drop_caches; md5sum -c /tmp/sum; umount /mnt; fsck.ext4 -fn $disk
lockstep device detach web; lockstep resource delete web; lockstep dev down
if dmesg | grep -i "i/o error"; then exit 1; fi
# A kernel that cannot accept as newer ones do is no failure.
if grep -h "accepting .* failed" /tmp/c/*/log; then exit 1; fi
echo "nodes works: three nodes, each killed while their volume was written to by NVMe/TCP, and all stopped: $(sed -n 's/.*node a: ready, //p' /tmp/c/a/log | head -n 1)" >> seen
