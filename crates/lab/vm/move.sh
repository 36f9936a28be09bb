#!/bin/busybox sh
# In the guest, as its first program: files on a disk, written and read back, round after round, until a line comes by the serial line.
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /tmp
exec < /dev/ttyS0 > /dev/ttyS0 2>&1
stty -echo
for module in virtio_pci virtio_blk virtio_rng crc32c_generic ext4; do modprobe $module; done
(read line; touch /tmp/end) < /dev/ttyS0 &
round=0
check() {
    set -e
    mkfs.ext4 -q /dev/vda; mount -t ext4 /dev/vda /mnt
    while [ ! -e /tmp/end ]; do
        round=$((round + 1))
        head -c 524288 /dev/urandom > /tmp/new; cp /tmp/new /mnt/file-$((round % 20)); sync
        (cd /tmp; sha256sum new | sed "s,new,/mnt/file-$((round % 20)),") > /tmp/sum-$((round % 20))
        echo 3 > /proc/sys/vm/drop_caches
        cat /tmp/sum-* | sha256sum -c -s
        echo "round $round"
    done
    umount /mnt; fsck.ext4 -fn /dev/vda
}
# By itself: in a list, or as a condition, it would go on after what fails.
check & checking=$!
if wait $checking && ! dmesg | grep -i "i/o error"; then echo "all is well"; else echo "something is wrong"; fi
sync; poweroff -f
