# In the guest: nodes of its own, and a volume as a disk of this host by ublk. `settings` says HAS (1: this kernel has the driver, 2: and its disks can grow).
# What it has seen is in `seen`.
set -ex
. ./settings
export LOCKSTEP_DIR=/tmp/c PATH=/tmp/bin:$PATH
mkdir /tmp/bin; cp lockstep lockstepd /tmp/bin/
disk=/dev/lockstep/by-res/web/0
refuses() { if "$@" > /tmp/said 2>&1; then cat /tmp/said; echo "not refused: $*"; false; fi; cat /tmp/said; }
trap 'set +e; grep -h "warn\|disk\|LOST\|error" /tmp/c/*/log | tail -n 16; date; dmesg | tail -n 5; cat /sys/block/ublkb*/inflight; tail -n 3 fio' EXIT

if [ "$HAS" = 0 ]; then
    lockstep dev up --nodes 1 --store memory --detach
    lockstep resource create web --size 16MiB --replicas 1
    refuses lockstep device attach web --via ublk; grep -q LS-0933 /tmp/said; grep -q "no ublk_drv" /tmp/said
    lockstep device list | grep -q "No volume"; lockstep resource delete web
    echo "ublk refused: no driver; that is said, and nothing is left behind" >> seen
    exit
fi

lockstep dev up --nodes 2 --detach; lockstep dev down
threads() { sed -i '/^threads/d' /tmp/c/*/node.toml; sed -i "1i threads = $1" /tmp/c/*/node.toml; }
threads 2; lockstep dev up --detach
lockstep resource create web --size 300MiB --replicas 2 --shards 2
lockstep wait web --for in-sync
# Of all ways it is the first, and the answer says who serves it.
lockstep device attach web | tee /tmp/said; grep "by ublk: the node of /tmp/c/./admin.sock serves it" /tmp/said; lockstep device detach web
lockstep device attach web --output json | tee /tmp/said; grep -q '"tried":\[\]' /tmp/said
grep -q '"via":"ublk"' /tmp/said; grep -q "\"device\":\"$disk\"" /tmp/said; grep -q '"already":false' /tmp/said
lockstep device attach web --via ublk --output json | grep -q '"already":true'
lockstep device list
name=$(basename "$(readlink $disk)"); queue=/sys/block/$name/queue
test "$(cat /sys/block/$name/size)" = $((300 * 2048)); test "$(cat $queue/logical_block_size)" = 4096
test "$(cat $queue/write_cache)" = "write back"; test "$(cat $queue/fua)" = 1; test "$(cat $queue/discard_granularity)" = 4096
test "$(ls /sys/block/$name/mq | wc -l)" = 2; test "$(cat /sys/block/$name/mq/*/nr_tags | tr '\n' " ")" = "128 128 "; test "$(cat $queue/max_sectors_kb)" = 1024; test "$(cat $queue/write_zeroes_max_bytes)" -ge 1048576

# No thread of a node waits for disks when memory is short: PF_MEMALLOC_NOIO of the kernel's flags.
for stat in $(for pid in $(busybox pidof lockstepd); do ls /proc/$pid/task/*/stat; done); do
    test $(($(sed 's/.*) //' $stat | cut -d' ' -f7) & 0x80000)) != 0
done

# Discard and zeroing, across what the node cuts requests by, and beside what stays.
head -c 8388608 /dev/urandom > /tmp/full
for way in "" -z; do
    dd if=/tmp/full of=$disk bs=1M oflag=direct
    blkdiscard $way -o 1044480 -l 2101248 $disk
    (head -c 1044480 /tmp/full; head -c 2101248 /dev/zero; tail -c +3145729 /tmp/full) > /tmp/expected
    dd if=$disk of=/tmp/read bs=1M count=8 iflag=direct; cmp /tmp/read /tmp/expected
done
fio --name=fua --filename=$disk --rw=write --bs=4k --size=64k --direct=1 --sync=1 --ioengine=psync --verify=crc32c
rm /tmp/full /tmp/expected /tmp/read

# Who waits longer than this in state D is named by the kernel, and looked for at the end.
echo 60 > /proc/sys/kernel/hung_task_timeout_secs; test "$(cat /proc/sys/kernel/hung_task_timeout_secs)" = 60
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
refuses lockstep device detach web; grep -q LS-0934 /tmp/said
# So slow that an emulated machine keeps its leases.
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=z --directory=/mnt --size=4M --numjobs=2 --cpus_allowed=0,1 --cpus_allowed_policy=split --rw=randwrite --bs=4k --ioengine=libaio --iodepth=16 --direct=1 --fsync=64 --rate_iops=200,75 \
            --verify=crc32c --verify_fatal=1 --randseed=$RANDOM > fio 2>&1 || return 1
        echo "$(date +%T) verified"
    done
}
(set +x; if load; then echo 0 > /tmp/fio; else echo 1 > /tmp/fio; fi) &
served() { lockstep device list --output json | grep -o 'c/[abc]/admin' | cut -d/ -f2; }
# Requests that wait have an answer once one that comes after them has.
flows() { timeout 60 dd if=$disk of=/dev/null bs=4096 count=1 iflag=direct; test ! -e /tmp/fio; }
# What was asked and not answered is known where a copy in sync is left.
round() {
    lockstep wait web --for in-sync --timeout 240; echo "$1: $2 goes"; lockstep dev kill "$2"; sleep 1; lockstep dev start "$2"; flows; sleep 2
    test "$(served)" = "$node"
}
sleep 2; node=$(served); other=$(echo b a | tr ' ' '\n' | grep -v "$node" | head -n 1)
round "its node" "$node"
# A primary without clients makes way for a node that has some: the other gets one.
place=$(lockstep resource show web | grep -o 'nvme+tcp://[^ ]*' | sed -n "$([ "$other" = a ] && echo 1 || echo 2)p"); place=${place#nvme+tcp://}
name_of=${place#*/}; name_of=${name_of%/*}; address=${place%%/*}
nvme connect -t tcp -a ${address%:*} -s ${address##*:} -n $name_of -q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 \
    -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427 --reconnect-delay=1 --ctrl-loss-tmo=600
is_primary() { lockstep status web > /tmp/said; grep "primary $other" /tmp/said; }
lockstep wait web --for in-sync --timeout 240; lockstep resource promote web --node "$other"; sleep 2; flows; is_primary
round "its node, whose requests are the other's" "$node"
lockstep wait web --for in-sync --timeout 240; is_primary
round "the primary's node" "$other"
# All nodes at once, and in good order; the next process has one thread for both queues.
lockstep dev down; threads 1; sleep 1; lockstep dev up --detach; flows
test "$(ls /sys/block/$name/mq | wc -l)" = 2
nvme disconnect -n $name_of; touch /tmp/enough; sleep 2
for _ in $(seq 12); do [ -e /tmp/fio ] && break; sleep 5; cat /sys/block/$name/inflight; done
tail -n 8 fio; test "$(cat /tmp/fio)" = 0
md5sum /mnt/z.* > /tmp/sum; fstrim -v /mnt; umount /mnt; fsck.ext4 -fn $disk
echo "ublk works: chosen unasked; two queues of 128 requests, by two threads and by one; no error while its node was killed twice, the primary's once, and all were stopped in good order" >> seen

# The disk's size is what it was made with, or, where the kernel can, what the volume has.
size_is() { test "$(cat /sys/block/$name/size)" = $(($1 * 2048)); }
mount -t ext4 $disk /mnt; lockstep resource resize web --size 320MiB
if [ "$HAS" = 2 ]; then
    for _ in $(seq 50); do size_is 320 && break; sleep 0.2; done
    size_is 320; dd if=/dev/urandom of=/tmp/end bs=4096 count=1; dd if=/tmp/end of=$disk bs=4096 seek=81919 oflag=direct
    dd if=$disk of=/tmp/read bs=4096 skip=81919 iflag=direct; cmp /tmp/read /tmp/end
    echo "ublk works: its new size is seen while it is mounted" >> seen
else
    sleep 3; size_is 300; grep -h "keeps its old size" /tmp/c/*/log
    echo "ublk works: its new size is seen once it is attached anew, and the log says so" >> seen
fi
umount /mnt
lockstep device detach web; test ! -e $disk; test -z "$(ls /dev/ublkc* 2>/dev/null)"; test ! -e /dev/$name
lockstep device list | grep -q "No volume"
lockstep device attach web --via ublk; name=$(basename "$(readlink $disk)"); size_is 320
mount -t ext4 $disk /mnt; md5sum -c /tmp/sum; umount /mnt
# By force, while it is open.
exec 9<$disk; sleep 1; lockstep device detach web --force; exec 9<&-
test ! -e /dev/$name
if dmesg | grep -iE "i/o error|hung|blocked for more"; then exit 1; fi
echo "ublk works: made, used, detached and made again with its data" >> seen
