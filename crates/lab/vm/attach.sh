# In the guest: `lockstep device` makes a disk of a volume, and takes it away again. `settings` says NVME and NBD (places, with commas between), and NAMES
# (1: its kernel's NBD client keeps a name with each disk). What
# it has seen is in `seen`. The host kills the first node when `kill` is there, and starts it again when `start` is.
set -ex; PS4='+ $SECONDS: '
. ./settings
cp lockstep lockstepd /bin/; rm -f seen
disk=/dev/lockstep/by-res/web/0 book=/var/lib/lockstep/attached.toml
refuses() { if "$@" > /tmp/said 2>&1; then cat /tmp/said; echo "not refused: $*"; false; fi; cat /tmp/said; }
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
is_empty() { lockstep device list | grep -q "No volume"; test ! -e /dev/lockstep/by-res/web; test -z "$(ls /sys/class/nvme 2>/dev/null)"; test ! -e /sys/block/nbd0/pid; }
has_paths() { test "$(lockstep device list --output json | grep -o '"state":"live"' | wc -l)" = $1; }
writes() { fio --name=z --filename=/mnt/f --size=6M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 "$@"; }

is_empty
refuses lockstep device detach web; grep -q LS-0935 /tmp/said
# A way that cannot be had leaves nothing behind.
refuses lockstep device attach web --via nvme --from nvme+tcp://10.0.2.2:1/nqn.x:web/1; grep -q LS-0933 /tmp/said
is_empty

lockstep device attach web --from "$NVME,$NBD" --output json | tee /tmp/said
grep -q '"via":"nvme"' /tmp/said; grep -q "\"device\":\"$disk\"" /tmp/said; grep -q '"already":false' /tmp/said
# Why not by the way before.
grep -q '"tried":\[{"via":"ublk","why":"[^"]' /tmp/said
test -b $disk; has_paths 3
lockstep device attach web --from "$NVME" --output json | grep -q '"already":true'
refuses lockstep device attach web --via nbd --from "$NBD"; grep -q LS-0936 /tmp/said
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
refuses lockstep device detach web; grep -q LS-0934 /tmp/said; grep -q "mounted at /mnt" /tmp/said
writes; umount /mnt; fsck.ext4 -fn $disk
# Mounted where this process does not see it.
unshare -m bash -c "mount -t ext4 $disk /mnt; touch /tmp/mounted; until test -e /tmp/end; do sleep 0.2; done; umount /mnt" & other=$!
until_so test -e /tmp/mounted; refuses lockstep device detach web; grep -q "open for itself alone" /tmp/said; touch /tmp/end; wait $other
# Open in a program that does not have it for itself alone: this one, and one that stands still.
exec 9< $disk; refuses lockstep device detach web; grep -q "is open: .*(process $$)" /tmp/said; exec 9<&-
sleep 1000 < $disk & other=$!
refuses lockstep device detach web; grep -q LS-0934 /tmp/said; grep -q "is open: sleep (process $other)" /tmp/said; kill $other; wait $other || true
mkswap $disk; swapon $disk
refuses lockstep device detach web; grep -q "used for swap" /tmp/said; swapoff $disk

# A crash between two steps: what is written down is made, or taken away.
cp $book /tmp/book; lockstep device detach web; is_empty
cp /tmp/book $book; lockstep device attach --all; test -b $disk; has_paths 3
lockstep device detach web; is_empty
cp /tmp/book $book; lockstep device detach web; is_empty
echo "nvme works: a disk with three paths, kept while it is mounted, open or used for swap, made and taken away after a crash" >> seen

if [ "$NAMES" != 1 ]; then
    refuses lockstep device attach web --from "$NBD"; grep -q LS-0933 /tmp/said; grep -q "keeps no name with its disks" /tmp/said; is_empty
    echo "nbd refused: it keeps no name with its disks" >> seen
fi
# The kernel's NBD client, which does not connect anew by itself; the first place is where the node dies.
nbd_of_a_peer() {
    lockstep device attach web --from "$NBD" --output json | tee /tmp/said
    grep -q '"via":"nbd"' /tmp/said; test -b $disk
    mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
    refuses lockstep device detach web; grep -q "mounted at /mnt" /tmp/said
    writes --rate=500k & writer=$!
    until_so test -s /mnt/f; touch kill; wait $writer
    umount /mnt; fsck.ext4 -fn $disk
    lockstep device detach web; is_empty
    echo "nbd works: a disk that got another node when its own was killed under fio" >> seen
}
if [ "$NAMES" = 1 ]; then nbd_of_a_peer; else touch kill; fi

# A node that is away gets its path when it is back.
lockstep device attach web --from "$NVME"; touch start
until_so has_paths 3
lockstep device detach web --remember; lockstep device list | grep -q resting; lockstep device attach web; test -b $disk
lockstep device detach web; is_empty
echo "nvme works: a path to a node that came back" >> seen

# A node of this host, which is asked where the volume is; its process dies, and another takes its place.
export LOCKSTEP_DIR=/tmp/c disk=/dev/lockstep/by-res/db/0
lockstep dev up --nodes 1 --detach; lockstep resource create db --size 64MiB --replicas 1
lockstep device attach db --via nvme --output json | grep '"via":"nvme"'; test -b $disk; lockstep device detach db
if [ "$NAMES" != 1 ]; then exit; fi
lockstep device attach db --via nbd --output json | tee /tmp/said; grep -q "a connection to /tmp/c/a/nbd.sock" /tmp/said
test "$(lockstep device link-of nbd0)" = lockstep/by-res/db/0
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
writes --rate=500k & writer=$!
until_so test -s /mnt/f; lockstep dev kill a; lockstep dev start a; wait $writer
umount /mnt; fsck.ext4 -fn $disk
lockstep resource resize db --size 80MiB; lockstep device attach db; test "$(cat /sys/block/nbd0/size)" = 163840
# What gets the resource's name does not get its disk.
lockstep resource delete db --force; lockstep resource create db --size 64MiB --replicas 1
refuses lockstep device attach --all; grep -q "another resource of that name" /tmp/said
refuses lockstep device detach db; grep -q LS-0934 /tmp/said; lockstep device detach db --force; is_empty
echo "nbd works: a disk that went on with its own node when that was killed and started under fio" >> seen

# The node of this host alone is asked, and tells of the others; then it is killed.
several() {
    lockstep device attach db --via $1 --output json | tee /tmp/said; grep -q "\"via\":\"$1\"" /tmp/said; test -b $disk
    if [ $1 = nvme ]; then has_paths 3; test "$(ls -d /sys/class/nvme-subsystem/*/nvme? | wc -l)" = 3; fi
    mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt
    writes --rate=300k & writer=$!
    until_so test -s /mnt/f; lockstep --dir /tmp/d dev kill a; wait $writer
    umount /mnt; fsck.ext4 -fn $disk
    lockstep device list; lockstep device detach db --force
    lockstep --dir /tmp/d dev start a; lockstep --dir /tmp/d wait db --for in-sync --timeout 240
}
lockstep resource delete db --force; lockstep dev down; unset LOCKSTEP_DIR
lockstep --dir /tmp/d dev up --nodes 3 --detach; lockstep --dir /tmp/d resource create db --size 64MiB --replicas 3
mkdir -p /var/lib/lockstep; ln -s /tmp/d/a/admin.sock /var/lib/lockstep/admin.sock
several nvme; several nbd
echo "attach works: of the node of this host alone it learns of the others, by NVMe/TCP and by NBD, and goes on by them when that node is killed under fio" >> seen
if dmesg | grep -i "i/o error"; then exit 1; fi
