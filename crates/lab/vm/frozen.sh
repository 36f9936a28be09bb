# In the guest: Linux' own NVMe/TCP initiator, with paths to two nodes that forward. The one that it uses stands still under fio, is given up, and goes on. `settings`
# says SUBSYSTEM, PORTS and TIMES. For each time the host looks for the files `uses-N` (with the port) and
# `left-N`, and makes `frozen-N` and `woken-N`.
set -ex
. ./settings
who="-q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
trap 'set +e; dmesg | tail -n 12; tail -n 6 fio' EXIT
for port in $PORTS; do nvme connect $who -t tcp -a 10.0.2.2 -s $port -n "$SUBSYSTEM" -k 5 --reconnect-delay=1 --ctrl-loss-tmo=600; done
disk=/dev/nvme0n1
until_so test -b $disk
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 2 ]; }
until_so live
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
# Few blocks, each written often: a write that comes late lands on something newer.
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=z --filename=/mnt/f --size=512k --io_size=4M --norandommap --rw=randwrite --bs=4k --ioengine=libaio --iodepth=16 --direct=1 --verify=crc32c \
            --verify_fatal=1 --randseed=$RANDOM > fio 2>&1 || return 1
        echo "$(date +%T) verified" >> rounds
    done
}
(set +x; if load; then echo 0 > /tmp/fio; else echo 1 > /tmp/fio; fi) &
# Writes that a path has carried: nvme0c1n1 is the disk by nvme1.
writes() { awk '{ print $5 }' /sys/block/nvme0c${1}n1/stat; }
more() { [ "$(writes $1)" -gt $2 ]; }
used() {
    local one before
    for _ in $(seq 100); do
        for one in 0 1; do eval "w$one=$(writes $one)"; done
        sleep 0.3
        for one in 0 1; do before=w$one; if more $one ${!before}; then echo $one; return; fi; done
    done
    false
}
set +x
for time in $(seq $TIMES); do
    until_so test -s rounds
    one=$(used); port=$(sed 's/.*trsvcid=\([0-9]*\).*/\1/' /sys/class/nvme/nvme$one/address)
    echo "time $time: nvme$one, port $port"; echo $port > new; mv new uses-$time
    until_so test -e frozen-$time
    gone() { ! grep -q live /sys/class/nvme/nvme$one/state; }
    until_so gone
    other=$((1 - one)); until_so more $other $(($(writes $other) + 20))
    test ! -e /tmp/fio; cat /sys/class/nvme/nvme*/state; touch left-$time
    until_so test -e woken-$time
    until_so live; test ! -e /tmp/fio
    rounds=$(wc -l < rounds); further() { [ "$(wc -l < rounds)" -gt $((rounds + 1)) ]; }
    until_so further
done
set -x
touch /tmp/enough; until_so test -e /tmp/fio; test "$(cat /tmp/fio)" = 0
umount /mnt; fsck.ext4 -fn $disk
if dmesg | grep -i "i/o error"; then exit 1; fi
nvme disconnect -n "$SUBSYSTEM"
echo "nvme works: a node that forwards stood still under fio $TIMES times, was given up, and went on: no error, and nothing older than what was written by the other path" >> seen
