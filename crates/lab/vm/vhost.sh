# In the guest: a volume as its disk by vhost-user. `settings` says SIZE and GROWN, in MiB. Says how far it is by files: `ready` (its node may die), `done`
# (enough of that), `grow` (the volume may grow). What it has seen is in `seen`.
set -ex
. ./settings
modprobe virtio_blk
trap 'set +e; dmesg | tail -n 8; cat /sys/block/vda/inflight; tail -n 3 fio' EXIT
disk=/dev/vda; queue=/sys/block/vda/queue
for _ in $(seq 20); do [ -e $disk ] && break; sleep 1; done
test "$(cat /sys/block/vda/size)" = $((SIZE * 2048)); test "$(cat $queue/logical_block_size)" = 4096
test "$(cat $queue/write_cache)" = "write back"; test "$(cat $queue/discard_granularity)" = 4096
test "$(ls -d /sys/block/vda/mq/* | wc -l)" = 1; test "$(wc -c < /sys/block/vda/serial)" = 20

# Discard and zeroing, across what the node cuts requests by, and beside what stays.
head -c 8388608 /dev/urandom > /tmp/full
for way in "" -z; do
    dd if=/tmp/full of=$disk bs=1M oflag=direct
    blkdiscard $way -o 1044480 -l 2101248 $disk
    (head -c 1044480 /tmp/full; head -c 2101248 /dev/zero; tail -c +3145729 /tmp/full) > /tmp/expected
    dd if=$disk of=/tmp/read bs=1M count=8 iflag=direct; cmp /tmp/read /tmp/expected
done
rm /tmp/full /tmp/expected /tmp/read

mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
load() {
    while [ ! -e enough ]; do
        fio --name=z --filename=/mnt/f --size=4M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=16 --direct=1 --fsync=64 --rate_iops=400,150 \
            --verify=crc32c --verify_fatal=1 --randseed=$RANDOM > fio 2>&1 || return 1
        echo "$(date +%T) verified" >> rounds
    done
}
touch ready
if load; then echo "vhost works: fio goes on while its node dies" >> seen; else cat fio; exit 1; fi
md5sum /mnt/f > /tmp/sum; fstrim -v /mnt; umount /mnt; fsck.ext4 -fn $disk
touch grow
for _ in $(seq 60); do [ "$(cat /sys/block/vda/size)" = $((GROWN * 2048)) ] && break; sleep 1; done
test "$(cat /sys/block/vda/size)" = $((GROWN * 2048))
mount -t ext4 $disk /mnt; md5sum -c /tmp/sum; umount /mnt
if dmesg | grep -iE "i/o error|hung|blocked for more"; then exit 1; fi
echo "vhost works: its new size, without a restart" >> seen
