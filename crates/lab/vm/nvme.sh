# In the guest: Linux' own NVMe/TCP initiator, with a path to every node of a volume and two queues each, while the primary's node is killed. `settings` says
# SUBSYSTEM, PORTS and GROWN (bytes). The host looks for the files `ready`, `lost` and `grow`, and makes `killed` (the port of the node that was) and `back`.
set -ex
. ./settings
who="-q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427"
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
trap 'set +e; dmesg | tail -n 8; tail -n 3 fio' EXIT
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 3 ]; }
disk=/dev/nvme0n1
set -- $PORTS

# With digests, by one path. Linux refuses a node that does not agree to them.
head -c 3145728 /dev/urandom > /tmp/full
for digests in --hdr-digest --data-digest; do
    nvme connect $who -t tcp -a 10.0.2.2 -s $1 -n "$SUBSYSTEM" -k 5 $digests; until_so test -b $disk
    dd if=/tmp/full of=$disk bs=64k count=4 oflag=direct; dd if=$disk bs=64k count=4 iflag=direct | cmp -n 262144 - /tmp/full
    nvme disconnect -n "$SUBSYSTEM"
done
nvme connect $who -t tcp -a 10.0.2.2 -s $1 -n "$SUBSYSTEM" -k 5 --hdr-digest --data-digest
until_so test -b $disk
dd if=/tmp/full of=$disk bs=1M oflag=direct
fio --name=d --filename=$disk --offset=8M --size=1M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
nvme disconnect -n "$SUBSYSTEM"
for port in $PORTS; do
    nvme discover $who -t tcp -a 10.0.2.2 -s $port | grep -q "$SUBSYSTEM"
    nvme connect $who -t tcp -a 10.0.2.2 -s $port -n "$SUBSYSTEM" -k 5 --reconnect-delay=2
done
until_so test -b $disk
dd if=$disk of=/tmp/read bs=1M count=3 iflag=direct; cmp /tmp/read /tmp/full
echo "nvme works: what was written with digests of headers and data is read without" >> seen
nvme list; nvme list-subsys
until_so live; test "$(dmesg | grep -c "creating 2 I/O queues")" -ge 4
for one in /sys/class/nvme/nvme*; do test "$(cat $one/queue_count)" = 3; done
block=$(cat /sys/block/nvme0n1/queue/logical_block_size)

# Commands that Linux itself does not send.
head -c "$block" /dev/urandom > /tmp/block; dd if=/tmp/block of=$disk bs="$block" seek=3 conv=fsync
nvme compare $disk --start-block=3 --block-count=0 --data-size="$block" --data=/tmp/block
if nvme compare $disk --start-block=4 --block-count=0 --data-size="$block" --data=/tmp/block; then echo "not the same, and no failure"; exit 1; fi
nvme verify $disk --start-block=0 --block-count=1023
nvme write-zeroes $disk --start-block=3 --block-count=0
dd if=$disk of=/tmp/read bs="$block" skip=3 count=1; head -c "$block" /dev/zero > /tmp/zero; cmp /tmp/read /tmp/zero

# Discard and zeroing, across what the node cuts requests by, and beside what stays; writes that are stable at once.
discards=$(cat /sys/block/nvme0n1/queue/discard_max_bytes)
case $(uname -r) in
    # It does not look for the limit.
    5.10.*) test "$discards" -gt 0 ;;
    *) test "$discards" = "$((block * 262144))" ;;
esac
test "$(cat /sys/block/nvme0n1/queue/write_zeroes_max_bytes)" -ge 1048576
head -c 8388608 /dev/urandom > /tmp/full
for way in "" -z; do
    dd if=/tmp/full of=$disk bs=1M oflag=direct
    blkdiscard $way -o 1044480 -l 2101248 $disk
    (head -c 1044480 /tmp/full; head -c 2101248 /dev/zero; tail -c +3145729 /tmp/full) > /tmp/expected
    dd if=$disk of=/tmp/read bs=1M count=8 iflag=direct; cmp /tmp/read /tmp/expected
done
test "$(cat /sys/block/nvme0n1/queue/fua)" = 1; test "$(cat /sys/block/nvme0n1/queue/write_cache)" = "write back"
nvme write $disk --force-unit-access --start-block=5 --block-count=0 --data-size="$block" --data=/tmp/block
dd if=$disk of=/tmp/read bs="$block" skip=5 count=1 iflag=direct; cmp /tmp/read /tmp/block
fio --name=fua --filename=$disk --rw=write --bs=4k --size=64k --direct=1 --sync=1 --ioengine=psync --verify=crc32c
rm /tmp/full /tmp/expected /tmp/read
echo "nvme works: two queues by each of three paths; compare, verify, discard, zeroing and writes that are stable at once" >> seen

mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=z --filename=/mnt/f --size=8M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --numjobs=1 --direct=1 --verify=crc32c --verify_fatal=1 \
            --randseed=$RANDOM > fio 2>&1 || return 1
        echo "$(date +%T) verified" >> rounds
    done
}
(set +x; if load; then echo 0 > /tmp/fio; else echo 1 > /tmp/fio; fi) &
until_so test -s /mnt/f

# One path is optimized, the primary's, and it alone carries what is asked.
optimized() {
    local one
    for one in /sys/block/nvme0c*n1; do
        if grep -qx optimized $one/ana_state && grep -q live /sys/class/nvme/nvme"$(expr $one : '.*nvme0c\([0-9]*\)n1')"/state; then echo $one; fi
    done
}
one_optimized() { [ "$(optimized | wc -l)" = 1 ]; }
until_so one_optimized; best=$(optimized)
set +x
carried() { awk '{ print $1 + $5 }' $1/stat; }
others() { local one; for one in /sys/block/nvme0c*n1; do [ $one = $best ] || carried $one; done; }
idle=$(others) before=$(carried $best); carries() { [ "$(carried $best)" -gt $((before + 50)) ]; }; until_so carries; set -x
test "$(others)" = "$idle"; test "$(optimized)" = $best; touch ready
until_so test -e killed; dead=$(dirname "$(grep -lE "trsvcid=$(cat killed)(,|\$)" /sys/class/nvme/nvme*/address)")
lost() { ! grep -q live $dead/state; }
until_so lost
# Writes that the other paths carry go on.
writes() { cat /sys/block/nvme0c*n1/stat | awk '{ sum += $5 } END { print sum }'; }
set +x; before=$(writes); more() { [ "$(writes)" -gt $((before + 50)) ]; }; until_so more; test ! -e /tmp/fio; set -x
# Another node is primary now: its path, which nobody had an error by, became optimized, so the host was told.
until_so one_optimized; test "$(optimized)" != $best; grep . /sys/block/nvme0c*n1/ana_state
echo "nvme works: the primary's path is optimized and carries all; when its node was killed, another's became that" >> seen
nvme list-subsys; touch lost
until_so test -e back
until_so live; grep live $dead/state; test ! -e /tmp/fio
touch /tmp/enough; until_so test -e /tmp/fio; test "$(cat /tmp/fio)" = 0; cat rounds
echo "nvme works: no error while the primary's node was killed under fio, whose path was lost, and came back" >> seen
touch grow
is_grown() { [ $(($(cat /sys/block/nvme0n1/size) * 512)) = "$GROWN" ]; }
until_so is_grown
fstrim -v /mnt; umount /mnt; fsck.ext4 -fn $disk
if dmesg | grep -i "i/o error"; then exit 1; fi
nvme disconnect -n "$SUBSYSTEM"
echo "nvme works: it sees the volume grow" >> seen
