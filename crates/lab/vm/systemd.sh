# In the guest, which systemd started: nodes, disks and file systems by the units and rules that are shipped. `settings` says PHASE, NVME (places of `web`, whose nodes are on the
# host) and VIA (by what the volume of its own node, `db`, is a disk): `made` does what a person does once, by hand, and ends in good order; `used` looks whether all is there again, kills and restarts the
# node, and writes until the host cuts the power; `lost` looks once more. What it has seen is in `seen`.
set -ex; PS4='+ $SECONDS: '
. ./settings
told() { set +ex; systemctl --failed --no-pager; journalctl -b --no-pager | grep -iE "lockstep|srv-|nvme|ublk|nbd|writer" | tail -n 120; }
trap 'echo 1 > /run/rc; told; ends poweroff' EXIT
ends() { exec systemctl start --no-block --job-mode=replace-irreversibly $1.target; }
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
is_mounted() { grep -q " /srv/$1 ext4 " /proc/mounts; }
refuses() { if "$@"; then echo "not refused: $*"; false; fi; }

# As a service that has its data on both: each file is synced before it is noted.
write='number=0; while true; do number=$((number + 1)); for volume in web db; do
    seq $number $((number + 2000)) > /srv/$volume/$number && sync /srv/$volume/$number /srv/$volume || exit 1; done; echo $number > /srv/noted.new; mv /srv/noted.new /srv/noted; done'
starts_to_write() { systemd-run --quiet --unit=writer -p "RequiresMountsFor=/srv/web /srv/db" bash -c "$write"; }
noted() { cat /srv/noted 2>/dev/null || echo 0; }
goes_on() { set +x; local before; before=$(noted); more() { [ "$(noted)" -ge $((before + 5)) ]; }; until_so more; systemctl is-active writer; set -x; }
is_there() { set +x; for number in $(seq "$(noted)"); do for volume in web db; do test "$(seq $number $((number + 2000)) | md5sum)" = "$(md5sum < /srv/$volume/$number)" || return 1; done; done; set -x; }

# The last line of the start before with these words.
line() { grep -n "$1" /tmp/before | tail -n 1 | cut -d: -f1 | grep .; }
# It ended in good order: what used a volume first, the disk after what was mounted from it, the node last.
ended_well() {
    journalctl -b -1 --no-pager -o cat > /tmp/before
    for volume in web db; do
        test "$(line "writer.service: Deactivated")" -lt "$(line "Unmounted srv-$volume.mount")"
        test "$(line "Unmounted srv-$volume.mount")" -lt "$(line "Stopped lockstep-attach@$volume-0.service")"
        test "$(line "Stopped lockstep-attach@$volume-0.service")" -lt "$(line "Stopped lockstepd.service")"
        test "$(line "Stopped lockstep-attach@$volume-0.service")" -lt "$(line "Stopped lockstep-keep.service")"
    done
    if grep -iE "i/o error|failed unmounting|timed out|failed with result|target is busy" /tmp/before; then false; fi
    if dmesg | grep -iE "recovery complete|recovering journal"; then false; fi
}
# What the system made of it by itself.
is_up() {
    systemctl is-system-running --wait | grep running
    for volume in web db; do is_mounted $volume; test -b /dev/lockstep/by-res/$volume/0; done
    lockstep device list
    is_there
    if dmesg | grep -i "i/o error"; then false; fi
}

case $PHASE in
made)
    lockstep cluster make --out /root/made a=127.0.0.1
    sed -i '1i nvme = "127.0.0.1:4420"' /root/made/a/node.toml
    cp -a /root/made/a/. /var/lib/lockstep/
    systemctl enable --now lockstepd; systemctl is-active lockstepd
    lockstep --admin /var/lib/lockstep/admin.sock resource create db --size 64MiB --replicas 1
    lockstep device attach db --output json | tee /tmp/said; grep "\"via\":\"$VIA\"" /tmp/said
    lockstep device attach web --from "$NVME" --output json | tee /tmp/said; grep '"via":"nvme"' /tmp/said
    for volume in web db; do
        mkfs.ext4 -q /dev/lockstep/by-res/$volume/0; mkdir /srv/$volume
        echo "/dev/lockstep/by-res/$volume/0 /srv/$volume ext4 _netdev,x-systemd.requires=lockstep-attach@$volume-0.service 0 2" >> /etc/fstab
        systemctl enable --now lockstep-attach@$volume-0
    done
    systemctl daemon-reload; systemctl start remote-fs.target
    is_up; starts_to_write; goes_on
    echo 0 > /run/rc; ends reboot ;;
used)
    is_up; ended_well
    echo "systemd works: disks were attached and mounted at a start, and unmounted and taken away before the node ended" >> seen
    # The rules alone.
    for volume in web db; do
        disk=$(basename "$(readlink -f /dev/lockstep/by-res/$volume/0)"); rm /dev/lockstep/by-res/$volume/0
        udevadm trigger --action=change /sys/class/block/$disk; udevadm settle; test -b /dev/lockstep/by-res/$volume/0
    done
    # A disk in use is not taken from under a file system: that goes first, or nothing does.
    systemctl stop lockstep-attach@web-0; refuses is_mounted web; refuses test -e /dev/lockstep/by-res/web/0
    systemctl start srv-web.mount; is_mounted web
    starts_to_write; goes_on
    systemctl kill --signal=KILL lockstepd; goes_on; until_so systemctl is-active lockstepd
    systemctl reload lockstepd; systemctl restart lockstepd; goes_on
    systemctl restart lockstep-keep; goes_on
    if systemctl --failed --no-legend | grep .; then false; fi
    echo "systemd works: a service went on while its node was killed and restarted by systemd" >> seen
    goes_on
    # At its next start the node comes late: what is mounted from its disk waits for it.
    late=/etc/systemd/system/lockstepd.service.d; mkdir $late
    printf '[Service]\nExecStartPre=+/bin/sh -c "test -e /run/tried || { touch /run/tried; false; }"\n' > $late/late.conf
    sync -f $late; touch written
    until_so false ;;
lost)
    is_up; test "$(noted)" -ge 15
    journalctl -b --no-pager -o cat -u lockstep-attach@db-0 | grep "trying for 80 s"
    echo "systemd works: all is mounted again after the power was cut, with what was synced, though a node came late" >> seen
    starts_to_write; goes_on
    echo 0 > /run/rc; ends poweroff ;;
esac
