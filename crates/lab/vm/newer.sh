#!/bin/bash
# newer.sh DIR: takes programs out of Debian 13's packages that this machine's release has not (tlshd), or not new enough (nvme with keys for
# TLS), and puts them and their libraries into DIR. Installs nothing; lists of packages are kept beside. Run them by the loader that is there.
set -eu
dir=$1 key=/usr/share/keyrings/debian-archive-keyring.gpg
for tool in apt-get dpkg; do command -v $tool >/dev/null || { echo "$tool is missing" >&2; exit 2; }; done
[ -e $key ] || { echo "$key is missing (apt-get install debian-archive-keyring)" >&2; exit 2; }
packages="ktls-utils nvme-cli libc6 libnvme1t64 libjson-c5 libkeyutils1 libssl3t64 libglib2.0-0t64 libgnutls30t64 libnl-3-200 libnl-genl-3-200
libpcre2-8-0 libp11-kit0 libidn2-0 libunistring5 libtasn1-6 libhogweed6t64 libnettle8t64 libgmp10 libffi8 zlib1g libzstd1 libatomic1"
rm -rf "$dir"; mkdir -p "$dir/making/lists/partial" "$dir/making/cache/archives/partial" "$dir/lib" "$dir/bin"; dir=$(cd "$dir"; pwd); work=$dir/making
echo "deb [signed-by=$key] http://deb.debian.org/debian trixie main" > "$work/sources.list"
apt() {
    apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$work/lists" \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"
}
apt update
# shellcheck disable=SC2086 # a list of words
(cd "$work" && apt download $packages && for package in *.deb; do dpkg -x "$package" root; done)
cp -L "$work"/root/usr/lib/x86_64-linux-gnu/*.so* "$dir/lib/"
cp "$work/root/usr/sbin/tlshd" "$work/root/usr/sbin/nvme" "$dir/bin/"
rm -rf "$work"; touch "$dir/made"
