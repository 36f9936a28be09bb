#!/bin/bash
# guest.sh DIR SHARE [SECONDS] [MIB] [WORDS...]: boots what initrd.sh made in an emulated machine, which runs SHARE/run as root; the host's loopback is 10.0.2.2
# there. What it says is in SHARE/out, its exit status is this script's; 124: it took longer, 125: it died. WORDS are QEMU's own.
set -u
machine=; trap 'kill $machine' TERM
dir=$1 share=$2 limit=${3:-240} memory=${4:-900}; rm -f "$share/rc" "$share/out" "$share/again"
boot() {
timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m "$memory" -smp 1 -nodefaults -nographic -no-reboot \
    -kernel "$dir/vmlinuz" -initrd "$dir/initrd" -serial "file:$share/console" \
    -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr random.trust_cpu=1 tsc=reliable no_timer_check" \
    -fsdev "local,id=h,path=$share,security_model=none" -device virtio-9p-pci,fsdev=h,mount_tag=host -device virtio-rng-pci \
    -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= "${@:5}" > "$share/qemu" 2>&1 &
machine=$!; wait $machine; status=$?; wait
}
boot "$@"
# Emulated, Linux 7.2 dies now and then of its own patching of its code while it starts. Nothing has run then.
[ ! -e "$share/out" ] && grep -qs "Kernel panic" "$share/console" && { mv "$share/console" "$share/again"; boot "$@"; }
[ -s "$share/rc" ] && exit "$(cat "$share/rc")"
[ $status = 124 ] && exit 124; exit 125
