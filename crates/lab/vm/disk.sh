#!/bin/bash
# disk.sh SYSTEM INITRD MORE DISK: makes DISK, a file with an ext4 file system that holds what is in SYSTEM (a tar archive), the modules that are in INITRD and what is below MORE.
set -eu
system=$1 initrd=$2 more=$3 disk=$4 root=$4.root
mkdir "$root"; tar -C "$root" -xf "$system"
# Their place is a link there.
mkdir "$root.modules"; (cd "$root.modules"; zcat "$initrd" | cpio -id --quiet 'lib/modules/*'); cp -a "$root.modules/lib/modules" "$root/usr/lib/"
cp -a "$more/." "$root/"
truncate -s 1G "$disk"; mkfs.ext4 -q -d "$root" "$disk"; rm -rf "$root" "$root.modules"
