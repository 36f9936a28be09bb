# In the guest: xfs on a volume by Linux' own NVMe/TCP initiator, with a path to every node, all of which are killed at once under it, twice. `settings` says SUBSYSTEM and
# PORTS. The host looks for the files `ready-1`, `lost-1`, `ready-2` and `lost-2`, and makes `killed-1`, `back-1` and so on. What it has seen is in `seen`.
set -ex
. ./settings
who="-q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
trap 'set +e; dmesg | tail -n 12; cat /tmp/failed' EXIT
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = "$1" ]; }
for port in $PORTS; do nvme connect $who -t tcp -a 10.0.2.2 -s $port -n "$SUBSYSTEM" -k 5 --reconnect-delay=1 --ctrl-loss-tmo=600; done
disk=/dev/nvme0n1
until_so test -b $disk; until_so live 3
mkfs.xfs -q $disk; mount -t xfs $disk /mnt; grep " /mnt xfs " /proc/mounts
# Each file is synced before it is noted; every third one is given up again.
writes() {
    number=0
    while [ ! -e /tmp/enough ]; do
        number=$((number + 1))
        seq $number $((number + 3000)) > /mnt/$number && sync /mnt/$number /mnt || return 1
        [ $((number % 3)) != 0 ] || rm /mnt/$number || return 1
        echo $number > /tmp/noted.new; mv /tmp/noted.new /tmp/noted
    done
}
(set +x; if writes 2> /tmp/failed; then echo 0 > /tmp/wrote; else echo 1 > /tmp/wrote; fi) &
noted() { cat /tmp/noted 2>/dev/null || echo 0; }
goes_on() { set +x; local before; before=$(noted); more() { [ "$(noted)" -ge $((before + 20)) ]; }; until_so more; set -x; }
for round in 1 2; do
    goes_on; touch ready-$round; until_so test -e killed-$round
    until_so live 0; touch lost-$round
    until_so test -e back-$round; until_so live 3
    goes_on; test ! -e /tmp/wrote
done
touch /tmp/enough; until_so test -e /tmp/wrote; test "$(cat /tmp/wrote)" = 0; last=$(noted)
umount /mnt; xfs_repair -n $disk
# Nothing of it is in this machine's memory any more.
echo 3 > /proc/sys/vm/drop_caches; mount -t xfs $disk /mnt
for number in $(seq "$last"); do
    if [ $((number % 3)) = 0 ]; then test ! -e /mnt/$number; else seq $number $((number + 3000)) | cmp - /mnt/$number; fi
done
umount /mnt
if dmesg | grep -iE "i/o error|xfs.*(shutdown|corrupt)"; then exit 1; fi
nvme disconnect -n "$SUBSYSTEM"
echo "nvme works: xfs stayed mounted and had no error while all nodes were killed at once, twice, and came back; $last synced files are as they were noted" >> seen
