# In the guest: Linux' own NVMe/TCP initiator, with a path to every node of a volume, while so many nodes are killed that no majority is left; then once
# more without multipath. `settings` says SUBSYSTEM, PORTS and LEFT (the port of the node that lives on). The host looks for the files `ready`, `waits`,
# `goes`, `single` and `failed`, and makes `killed`, `one-back`, `all-back`, `killed-again` and `one-back-again`.
set -ex
. ./settings
who="-q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
trap 'set +e; dmesg | tail -n 12; tail -n 6 fio; grep . /sys/block/nvme0c*n1/ana_state' EXIT
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = "$1" ]; }
for port in $PORTS; do nvme connect $who -t tcp -a 10.0.2.2 -s $port -n "$SUBSYSTEM" -k 5 --reconnect-delay=1 --ctrl-loss-tmo=600; done
disk=/dev/nvme0n1
until_so test -b $disk; until_so live 3
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=z --filename=/mnt/f --size=2M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=$RANDOM \
            > fio 2>&1 || return 1
        echo "$(date +%T) verified" >> rounds
    done
}
(set +x; if load; then echo 0 > /tmp/fio; else echo 1 > /tmp/fio; fi) &
until_so test -s rounds; touch ready

# No majority: the path that is left is inaccessible, and requests wait for it and for the others.
until_so test -e killed; until_so live 1
left=$(basename "$(dirname "$(grep -lE "trsvcid=$LEFT(,|\$)" /sys/class/nvme/nvme*/address)")"); path=/sys/block/nvme0c${left#nvme}n1
barred() { grep -q inaccessible $path/ana_state; }
until_so barred
set +x
# What the paths carried: of the disk that stands above them not every kernel counts it.
done_so_far() { cat /sys/block/nvme0c*n1/stat | awk '{ sum += $1 + $5 } END { print sum }'; }
still() { local before; before=$(done_so_far); sleep 3; [ "$(done_so_far)" = "$before" ]; }
until_so still; set -x
test ! -e /tmp/fio; grep . /sys/block/nvme0c*n1/ana_state; touch waits
until_so test -e one-back
set +x; rounds=$(wc -l < rounds); further() { [ "$(wc -l < rounds)" -gt $((rounds + 1)) ]; }; until_so further; set -x
test ! -e /tmp/fio; touch goes
touch /tmp/enough; until_so test -e /tmp/fio; test "$(cat /tmp/fio)" = 0
umount /mnt; fsck.ext4 -fn $disk
if dmesg | grep -i "i/o error"; then exit 1; fi
nvme disconnect -n "$SUBSYSTEM"
echo "nvme works: two of three nodes were killed under fio, its requests waited, and went on without an error when one came back" >> seen

# A host without multipath has a disk for each path, asks an inaccessible one a few times, and then has an error: never a wrong answer.
until_so test -e all-back
modprobe -r nvme_tcp nvme_fabrics nvme_core; modprobe nvme_core multipath=N; modprobe nvme_tcp
test "$(cat /sys/module/nvme_core/parameters/multipath)" = N
nvme connect $who -t tcp -a 10.0.2.2 -s $LEFT -n "$SUBSYSTEM" -k 5 --reconnect-delay=1
until_so test -b $disk
head -c 1048576 /dev/urandom > /tmp/full; dd if=/tmp/full of=$disk bs=64k oflag=direct
touch single; until_so test -e killed-again
refused() { ! dd if=/dev/zero of=$disk bs=4k count=1 oflag=direct conv=fsync; }
until_so refused; touch failed
until_so test -e one-back-again
whole() { dd if=$disk of=/tmp/read bs=64k count=16 iflag=direct; }
until_so whole
# The write that was refused may have been carried out, or not.
cmp /tmp/read /tmp/full || { tail -c +4097 /tmp/full > /tmp/a; tail -c +4097 /tmp/read > /tmp/b; cmp /tmp/a /tmp/b; cmp -n 4096 /tmp/read /dev/zero; }
nvme disconnect -n "$SUBSYSTEM"
echo "nvme works: without multipath a request has an error while there is no majority, and the disk works again after it" >> seen
