#!/bin/busybox sh
# The first program of a machine with a system of its own on a disk: it mounts that disk and the host's share, and makes way for systemd.
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for module in virtio_pci virtio_blk virtio_net 9p 9pnet_virtio virtio_rng crc32c_generic crc32c_intel ext4; do modprobe $module; done
until test -b /dev/vda; do sleep 0.1; done
mkdir /system; mount -t ext4 -o rw /dev/vda /system
mount -t 9p -o trans=virtio,version=9p2000.L host /system/host
mount --move /dev /system/dev; umount /proc /sys
exec switch_root /system /lib/systemd/systemd
