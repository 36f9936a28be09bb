# In the guest: two nodes with their metadata in persistent memory, by a file system with DAX, and a disk by VIA (ublk or nvme). In phase `write` a file system on their volume is
# written to until the machine is ended; `look` finds what was acknowledged. What it has seen is in `seen`.
set -ex
. ./settings
export LOCKSTEP_DIR=/pmem/c PATH=/tmp/bin:$PATH
mkdir /tmp/bin /pmem; cp lockstep lockstepd /tmp/bin/
disk=/dev/lockstep/by-res/web/0
trap 'set +e; tail -n 12 /pmem/c/*/log; dmesg | tail -n 5' EXIT
for module in libnvdimm nd_e820 nd_pmem; do modprobe $module; done
for _ in $(seq 50); do [ -b /dev/pmem0 ] && break; sleep 0.2; done
grep -q 1 /sys/block/pmem0/queue/dax

if [ $PHASE = write ]; then
    mkfs.ext4 -q -b 4096 /dev/pmem0; mount -t ext4 -o dax=always /dev/pmem0 /pmem
    lockstep dev up --nodes 2 --detach
    for node in a b; do
        echo "[[members]]"; echo "node = \"$node\""
        echo "stores = [{ volume = 0, kind = \"file\", path = \"/pmem/$node.data\", metadata_path = \"/pmem/$node.metadata\" }]"
    done > /tmp/web.toml
    printf '[[volumes]]\nsize = "64MiB"\n' >> /tmp/web.toml
    lockstep resource create web --from /tmp/web.toml; lockstep wait web --for in-sync
    for node in a b; do grep "metadata in /pmem/$node.metadata (persistent memory)" /pmem/c/$node/log; done
    lockstep device attach web --via $VIA
    mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
    sync; number=0; set +x
    while true; do
        number=$((number + 1)); seq $number $((number + 2000)) > /mnt/$number; sync /mnt/$number /mnt
        echo $number > acknowledged.new; mv acknowledged.new acknowledged
        [ $number -lt 60 ] || touch written
    done
fi

mount -t ext4 -o dax=always /dev/pmem0 /pmem
lockstep dev up --detach; lockstep wait web --for in-sync --timeout 240
for node in a b; do test "$(grep -c "(persistent memory)" /pmem/c/$node/log)" = 2; done
last=$(cat acknowledged); test "$last" -ge 60
. ./verified; verified
# The disk that this host had is made again, by what is written down of it.
lockstep device attach --all; test -b $disk; lockstep device list --output json | grep "\"via\":\"$VIA\""
fsck.ext4 -fp $disk || test $? = 1
mount -t ext4 $disk /mnt
for number in $(seq "$last"); do seq $number $((number + 2000)) | cmp - /mnt/$number; done
umount /mnt; lockstep device detach web; lockstep dev down
echo "pmem works: $last files that were acknowledged before the power went are there; logs and bitmaps were read from persistent memory, and the disk was made again by \`device attach --all\`" >> seen
