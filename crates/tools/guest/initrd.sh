#!/bin/bash
# initrd.sh SERIES KEPT [RELEASE]: takes the newest kernel of a SERIES (linux-image-amd64, linux-image-6.12-amd64) out of Debian's packages, of this machine's
# release or of RELEASE (bullseye, forky), and makes an initial file system in memory for it, with this machine's nvme, fio, mkfs.ext4, mkfs.xfs and busybox.
# KEPT/PACKAGE gets `vmlinuz` and `initrd`, unless they are there and no older than this script. The last word that it prints is PACKAGE. Installs
# nothing: says which tool is missing.
set -eu
series=$1 kept=$2 release=${3:-}
for tool in busybox nvme fio mkfs.ext4 fsck.ext4 mkfs.xfs xfs_repair fstrim blkdiscard dmsetup modprobe depmod cpio xz dpkg apt-get; do
    command -v $tool >/dev/null || { echo "$tool is missing (apt-get install busybox-static nvme-cli fio e2fsprogs xfsprogs dmsetup kmod cpio)" >&2; exit 2; }
done
mkdir -p "$kept"; kept=$(cd "$kept"; pwd); options=()
if [ -n "$release" ]; then
    key=/usr/share/keyrings/debian-archive-keyring.gpg lists=$kept/lists-$release
    [ -e $key ] || { echo "$key is missing (apt-get install debian-archive-keyring)" >&2; exit 2; }
    mkdir -p "$lists/state/partial" "$lists/cache/archives/partial"
    echo "deb [signed-by=$key] http://deb.debian.org/debian $release main" > "$lists/sources.list"
    options=(-o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$lists/state" -o "Dir::Cache=$lists/cache"
        -o APT::Sandbox::User=root)
    # Once a day.
    if [ -z "$(find "$lists/updated" -mmin -1440 2>/dev/null)" ]; then apt-get -q "${options[@]}" update; touch "$lists/updated"; fi
fi
package=$(apt-cache "${options[@]}" depends "$series" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
[ -n "$package" ] || { echo "the package archive names no $series (apt-get update)" >&2; exit 2; }
dir=$kept/$package
[ ! "$dir/vmlinuz" -nt "$0" ] || { echo "$package"; exit; }
work=$dir/work; rm -rf "$work"; mkdir -p "$work/kernel"
# Newer releases have the kernel and its modules in packages of their own, on which that one depends.
mapfile -t parts < <(apt-cache "${options[@]}" depends "$package" | sed -n 's/^ *Depends: \(linux-\(binary\|modules\)-.*\)/\1/p')
(cd "$work" && chmod 777 . && apt-get "${options[@]}" download -q "$package" "${parts[@]}" && for each in linux-*.deb; do dpkg -x "$each" kernel; done)
modules=$(ls -d "$work"/kernel/{usr/,}lib/modules/* 2>/dev/null | head -1) version=$(basename "$modules")
root=$work/root; mkdir -p "$root"/{bin,lib,proc,sys,dev,mnt,host,tmp,etc,run,usr,lib/modules/"$version"}; ln -s bin "$root/usr/bin"; ln -s bin "$root/sbin"
put() {
    cp "$(readlink -f "$(command -v "$1")")" "$root/bin/$1"
    ldd "$root/bin/$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"; cp -nL "$library" "$root$library"
    done
}
for tool in busybox nvme fio mkfs.ext4 fsck.ext4 mkfs.xfs xfs_repair fstrim blkdiscard dmsetup modprobe bash; do put $tool; done
find "$modules" -maxdepth 1 \( -name 'modules.builtin*' -o -name modules.order \) -exec cp -t "$root/lib/modules/$version" {} +
(cd "$modules" && find kernel -name '*.ko*' | grep -E 'virtio|rng-core|/nvme/|9p|failover|crc|ext4|/xfs/|jbd2|mbcache|netfs|fscache|t10-pi|/block/(nbd|brd|drbd/)|lru_cache|/ublk_drv|/md/dm-(mod|crypt|flakey)|/encrypted-keys/|/trusted-keys/|/asn1|/char/tpm/|/net/tls/|/nvdimm/|/dax/|crypto/(gcm|xts|ecb|ghash|gf128mul|aesni|cryptd|crypto_simd)' | cpio -pdm --quiet "$root/lib/modules/$version")
find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
depmod -b "$root" "$version"
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
cp "$(find "$work/kernel" -name 'vmlinuz*' -print -quit)" "$dir/vmlinuz"; rm -rf "$work"; echo "$package"
