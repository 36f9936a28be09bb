# In the guest: device mapper below the nodes of a volume, and above the disk that is made of it. A copy is on parts of two disks (linear), the
# other on a disk that fails when it is told to (flakey); the file system is on an enciphered one (crypt). `settings` says VIA (ublk, or nvme for a kernel that has none).
# What it has seen is in `seen`.
set -ex
. ./settings
export LOCKSTEP_DIR=/tmp/c PATH=/tmp/bin:$PATH
mkdir /tmp/bin; cp lockstep lockstepd /tmp/bin/
disk=/dev/lockstep/by-res/web/0
trap 'set +e; tail -n 12 /tmp/c/*/log; dmsetup table; dmesg | tail -n 12; tail -n 3 fio' EXIT
modprobe brd rd_nr=3 rd_size=184320
for module in dm-mod dm-crypt dm-flakey xts; do modprobe $module; done
# There is no udev: nodes are made by dmsetup itself.
export DM_DISABLE_UDEV=1
sectors=$(blockdev --getsz /dev/ram0)
printf '0 %s linear /dev/ram0 2048\n%s %s linear /dev/ram1 4096\n' 200000 200000 160000 | dmsetup create two
dmsetup create flaky --table "0 $sectors flakey /dev/ram2 0 3600 0"

lockstep dev up --nodes 3 --detach
for node in a:two b:flaky; do
    echo "[[members]]"; echo "node = \"${node%:*}\""
    echo "stores = [{ volume = 0, kind = \"device\", path = \"/dev/mapper/${node#*:}\" }]"
done > /tmp/web.toml
# The vote of a node whose device fails fails with it: the two others are a majority.
printf '[[members]]\nnode = "c"\nkind = "witness"\n[[volumes]]\nsize = "128MiB"\n' >> /tmp/web.toml
lockstep resource create web --from /tmp/web.toml; lockstep wait web --for in-sync
# A device that is in use below is refused to others.
if dmsetup remove flaky; then echo "a store's device could be removed"; false; fi
lockstep device attach web --via $VIA
dmsetup create secret --table "0 $(blockdev --getsz $disk) crypt aes-xts-plain64 $(printf '%064d' 7)$(printf '%064d' 9) 0 $disk 0 1 allow_discards"
secret=/dev/mapper/secret
mkfs.ext4 -q $secret; mount -t ext4 -o discard $secret /mnt
load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=z --directory=/mnt --size=4M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --fsync=64 --rate_iops=150 \
            --verify=crc32c --verify_fatal=1 --randseed=$RANDOM > fio 2>&1 || return 1
        echo "$(date +%T) verified"
    done
}
(set +x; if load; then echo 0 > /tmp/fio; else echo 1 > /tmp/fio; fi) &
# What does not come back cannot be ended either: who waits for what is shown then.
flows() {
    dd if=$secret of=/dev/null bs=4096 count=1 iflag=direct & one=$!
    for _ in $(seq 60); do [ -e /proc/$one ] || break; sleep 1; done
    if [ -e /proc/$one ]; then
        lockstep status web; lockstep device list; tail -n 30 /tmp/c/*/log
        echo w > /proc/sysrq-trigger; sleep 1; dmesg | tail -n 120; false
    fi
    wait $one; test ! -e /tmp/fio
}
sleep 2; flows

synced() { lockstep wait web --for in-sync --timeout 240; }
# A disk that stands still for a moment is a pause: its copy may be left out by then, and is in sync afterwards without a hand.
for one in two flaky; do synced; dmsetup suspend --nolockfs $one; sleep 2; dmsetup resume $one; flows; done
synced; flows
echo "mapper works: each copy's device stood still for two seconds: a pause, after which both were in sync" >> seen

# One that fails is left out, and the other goes on; another device in its place is copied to.
lockstep resource promote web --node a; synced
lockstep status web > /tmp/said; cat /tmp/said; grep "primary a" /tmp/said; grep -E ' b +in-sync' /tmp/said
dmsetup suspend --nolockfs flaky; dmsetup load flaky --table "0 $sectors flakey /dev/ram2 0 0 3600"; dmsetup resume flaky
is_out() { lockstep status web > /tmp/said; grep -E ' b +(failed|detached)' /tmp/said; }
for _ in $(seq 60); do is_out && break; sleep 1; done
cat /tmp/said; is_out; flows
# Longer than a lease: what goes on then goes on without that node.
sleep 5; flows; lockstep status web; lockstep explain web
dmsetup suspend --nolockfs flaky; dmsetup load flaky --table "0 $sectors flakey /dev/ram2 0 3600 0"; dmsetup resume flaky
lockstep dev kill b; lockstep dev start b
lockstep wait web --for in-sync --timeout 240; flows
echo "mapper works: a copy whose device gave errors was left out without one for the application, and copied to when it was back" >> seen

touch /tmp/enough
for _ in $(seq 24); do [ -e /tmp/fio ] && break; sleep 5; done
test "$(cat /tmp/fio)" = 0
md5sum /mnt/z.* > /tmp/sum; fstrim -v /mnt; umount /mnt; fsck.ext4 -fn $secret
# What is on the volume is enciphered; what is below it is where the table says.
if lockstep device detach web; then echo "a disk that device mapper uses was taken away"; false; fi
dmsetup remove secret
. ./verified; verified
lockstep device detach web; lockstep dev down
one=$( (dd if=/dev/ram0 bs=1M skip=1 count=98 | head -c 102400000; dd if=/dev/ram1 bs=1M skip=2) | head -c 134217728 | md5sum)
test "$one" = "$(dd if=/dev/ram2 bs=1M count=128 | md5sum)"
for one in two flaky; do dmsetup remove $one; done
echo "mapper works: a file system on dm-crypt on the volume, whose copies are on dm-linear and dm-flakey: clean, and both copies the same" >> seen
