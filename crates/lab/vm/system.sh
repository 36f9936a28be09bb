#!/bin/bash
# system.sh DIR: takes systemd, udev and what they stand on out of the packages of this machine's Debian, and puts them, as a system that starts, into
# DIR/root.tar. Installs nothing.
set -eu
dir=$1
for tool in apt-get dpkg-deb tar ldconfig; do command -v $tool >/dev/null || { echo "$tool is missing" >&2; exit 2; }; done
rm -rf "$dir"; mkdir -p "$dir/making/cache/archives/partial"; dir=$(cd "$dir"; pwd); work=$dir/making root=$dir/making/root
# As a machine that has nothing yet.
touch "$work/status"
apt-get -q --yes --download-only --no-install-recommends -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
    install systemd udev mount util-linux bash coreutils grep sed findutils procps kmod iproute2 e2fsprogs base-files libc-bin libssl3 libgcc-s1
mkdir -p "$root"/usr/{bin,sbin,lib,lib32,lib64,libx32}
for each in bin sbin lib lib32 lib64 libx32; do ln -s usr/$each "$root/$each"; done
for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root" --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*'
done
mkdir -p "$root"/{proc,sys,dev,run,tmp,host,root,var/log/journal,etc/systemd/system,etc/systemd/network,etc/udev/rules.d}
printf '%s\n' root:x:0:0:root:/root:/bin/bash systemd-network:x:998:998::/:/usr/sbin/nologin nobody:x:65534:65534::/:/usr/sbin/nologin > "$root/etc/passwd"
number=1; for group in root:0 nogroup:65534 systemd-network:998 systemd-journal:999 tty disk kmem dialout cdrom tape video audio input kvm render sgx lp utmp; do
    case $group in *:*) echo "${group%:*}:x:${group#*:}:" ;; *) number=$((number + 1)); echo "$group:x:$number:" ;; esac
done > "$root/etc/group"
echo 5f3a1c0e9b6d4e2f8a7c1d0b3e5f7a9c > "$root/etc/machine-id"; echo machine > "$root/etc/hostname"; echo "127.0.0.1 localhost machine" > "$root/etc/hosts"
echo "/dev/vda / ext4 defaults 0 1" > "$root/etc/fstab"
printf '[Match]\nType=ether\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' > "$root/etc/systemd/network/10-machine.network"
cd "$root/etc/systemd/system"
mkdir multi-user.target.wants network-online.target.wants
ln -s /lib/systemd/system/{systemd-networkd.service,remote-fs.target} multi-user.target.wants/
ln -s /lib/systemd/system/systemd-networkd-wait-online.service network-online.target.wants/
# Nobody sits at it.
for unit in getty@.service getty-static.service serial-getty@.service proc-sys-fs-binfmt_misc.automount; do ln -s /dev/null $unit; done
ldconfig -r "$root"
tar -C "$root" -cf "$dir/root.tar" .; rm -rf "$work"
