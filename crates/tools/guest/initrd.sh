#!/bin/bash
# initrd.sh PACKAGE DIR: takes a kernel out of Debian's PACKAGE (linux-image-...-amd64) and makes an initial file system in memory for it,
# with this machine's nvme, fio, mkfs.ext4 and busybox. DIR gets `vmlinuz` and `initrd`. Installs nothing: says which tool is missing.
set -eu
package=$1 dir=$2
for tool in busybox nvme fio mkfs.ext4 fsck.ext4 fstrim blkdiscard dmsetup modprobe depmod cpio xz dpkg apt-get; do
    command -v $tool >/dev/null || { echo "$tool is missing (apt-get install busybox-static nvme-cli fio e2fsprogs dmsetup kmod cpio)" >&2; exit 2; }
done
mkdir -p "$dir"; dir=$(cd "$dir"; pwd); work=$dir/work; rm -rf "$work"; mkdir -p "$work/kernel"
(cd "$work" && chmod 777 . && apt-get download -q "$package" && dpkg -x "$package"_*.deb kernel)
modules=$(ls -d "$work"/kernel/{usr/,}lib/modules/* 2>/dev/null | head -1) release=$(basename "$modules")
root=$work/root; mkdir -p "$root"/{bin,lib,proc,sys,dev,mnt,host,tmp,etc,run,usr,lib/modules/"$release"}; ln -s bin "$root/usr/bin"; ln -s bin "$root/sbin"
put() {
    cp "$(readlink -f "$(command -v "$1")")" "$root/bin/$1"
    ldd "$root/bin/$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"; cp -nL "$library" "$root$library"
    done
}
for tool in busybox nvme fio mkfs.ext4 fsck.ext4 fstrim blkdiscard dmsetup modprobe bash; do put $tool; done
cp "$modules"/modules.builtin* "$modules/modules.order" "$root/lib/modules/$release/"
(cd "$modules" && find kernel -name '*.ko*' | grep -E 'virtio|/nvme/|9p|failover|crc|ext4|jbd2|mbcache|netfs|fscache|t10-pi|/block/(nbd|brd|drbd/)|lru_cache|/ublk_drv|/md/dm-(mod|crypt|flakey)|/encrypted-keys/|/trusted-keys/|/asn1|/char/tpm/|/net/tls/|/nvdimm/|/dax/|crypto/(gcm|xts|ecb|ghash|gf128mul|aesni|cryptd|crypto_simd)' | cpio -pdm --quiet "$root/lib/modules/$release")
find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
depmod -b "$root" "$release"
cat > "$root/init" <<'I'
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mkdir -p /dev/shm; mount -t tmpfs t /dev/shm; mount -t tmpfs t /run; mount -t tmpfs t /tmp
for module in virtio_pci virtio_net 9p 9pnet_virtio virtio_rng crc32c_generic crc32c_intel ext4 nvme-tcp; do modprobe $module; done
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
mount -t 9p -o trans=virtio,version=9p2000.L host /host
cd /host; bash ./run </dev/null > out 2>&1; echo $? > rc; sync; poweroff -f
I
chmod +x "$root/init"; (cd "$root"; find . | cpio -o -H newc --quiet) | gzip -1 > "$dir/initrd"
cp "$work"/kernel/boot/vmlinuz-* "$dir/vmlinuz"; rm -rf "$work"; echo "$release"
