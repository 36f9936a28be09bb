# In the guest: Linux' own NVMe/TCP initiator proves who it is to three nodes, and has them prove who they are. `settings` says SUBSYSTEM, OPEN
# (one that needs no proof), PORTS, HAS (1: this kernel can do it), and secrets: SECRET and NEXT of this host, NODES of the nodes, WRONG of nobody. The host looks for the files
# `ready` and `proved`, and makes `back` and `both`. What it has seen is in `seen`.
set -ex
. ./settings
id=1b4e28ba-2fa1-11d2-883f-0016d3cca427 host=nqn.2014-08.org.nvmexpress:uuid
who="-q $host:$id -I $id"
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
link() { nvme connect -t tcp -a 10.0.2.2 -k 5 --reconnect-delay=2 "$@"; }
refuses() { if link "$@"; then echo "not refused: $*"; false; fi; test -z "$(ls /sys/class/nvme 2>/dev/null)"; }
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 3 ]; }
# How often each path has been proved, by its first queue.
times() { local one; for one in /sys/class/nvme/nvme*; do dmesg | grep -c "nvme ${one##*/}: qid 0: authenticated with hash" || true; done; }
set -- $PORTS
prepare() {
    cp lockstep /bin/; mkdir -p /etc/nvme; echo $host:$id > /etc/nvme/hostnqn; echo $id > /etc/nvme/hostid
    places=$(printf ",nvme+tcp://10.0.2.2:%s/$SUBSYSTEM/1" "$@")
}
attach() { lockstep device attach web --via nvme --from "${places#,}" "$@" > /tmp/said 2>&1 && cat /tmp/said; }
table() { printf '[[hosts]]\nnqn = "%s"\nsecret = "%s"\ncontroller_secret = "%s"\n' $host:$id $1 $NODES > /tmp/keys; chmod 600 /tmp/keys; }
fails() { if "$@"; then echo "it did not fail: $*"; exit 1; fi; cat /tmp/said; test -z "$(ls /sys/class/nvme 2>/dev/null)"; }

if [ "$HAS" != 1 ]; then
    refuses $who -s $1 -n $SUBSYSTEM
    refuses $who -s $1 -n $SUBSYSTEM --dhchap-secret=$SECRET
    dmesg | grep -i nvme | tail -n 4
    prepare "$@"; table $SECRET; fails attach --nvme-keys /tmp/keys; grep -q "LS-0933" /tmp/said
    link $who -s $1 -n $OPEN; nvme disconnect -n $OPEN
    echo "proof refused: built without; what needs no proof is used as before" >> seen
    exit
fi

refuses $who -s $1 -n $SUBSYSTEM
refuses $who -s $1 -n $SUBSYSTEM --dhchap-secret=$WRONG
refuses $who -s $1 -n $SUBSYSTEM --dhchap-secret=$SECRET --dhchap-ctrl-secret=$WRONG
refuses -q $host:${id%7}8 -I ${id%7}8 -s $1 -n $SUBSYSTEM --dhchap-secret=$SECRET
link $who -s $1 -n $OPEN; nvme disconnect -n $OPEN
echo "proof works: no secret, a wrong one, a wrong one of the node and another host's are refused" >> seen

link $who -s $1 -n $SUBSYSTEM --dhchap-secret=$SECRET
link $who -s $2 -n $SUBSYSTEM --dhchap-secret=$SECRET --dhchap-ctrl-secret=$NODES
link $who -s $3 -n $SUBSYSTEM --dhchap-secret=$SECRET --dhchap-ctrl-secret=$NODES
disk=/dev/nvme0n1
until_so test -b $disk
until_so live
dmesg | grep "authenticated"
dmesg | grep "authenticated with hash" | tail -1 | sed 's/.*qid 0: /proof works: /' >> seen
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt; touch ready
fio --name=z --filename=/mnt/f --size=16M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
until_so test -e back
until_so live
echo "proof works: a node that came back is proved to anew" >> seen

# The host's secret is changed while the disk is in use; until then both will do.
until_so test -e both
lost() { dmesg | grep -c "starting error recovery"; }
before=$(times) gone=$(lost)
for one in /sys/class/nvme/nvme*; do echo "$NEXT" > $one/dhchap_secret; done
again() {
    local one was now
    set -- $before
    for one in /sys/class/nvme/nvme*; do
        was=$1 now=$(dmesg | grep -c "nvme ${one##*/}: qid 0: authenticated with hash"); shift
        [ "$now" -gt $was ] || return 1
    done
}
# The nodes take the old one away at once, while the host is about to prove: no path may be lost by that.
touch proved
until_so again
fio --name=y --filename=/mnt/g --size=8M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
until_so test -e only
fio --name=x --filename=/mnt/h --size=8M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
until_so live
[ "$(lost)" = "$gone" ]
umount /mnt; fsck.ext4 -fn $disk
if dmesg | grep -i "i/o error"; then exit 1; fi
nvme disconnect -n "$SUBSYSTEM"
echo "proof works: its secret is changed while the disk is in use" >> seen

# `lockstep device` proves it by a table.
prepare "$@"
fails attach; grep -q "nvme-keys" /tmp/said
table $SECRET; fails attach --nvme-keys /tmp/keys
table $NEXT; chmod 640 /tmp/keys; fails attach --nvme-keys /tmp/keys; grep -q LS-0941 /tmp/said
chmod 600 /tmp/keys; attach --nvme-keys /tmp/keys; until_so live
fsck.ext4 -fn /dev/lockstep/by-res/web/0
if grep "${NEXT:10:20}" /tmp/said /var/lib/lockstep/*; then exit 1; fi
lockstep device detach web; test -z "$(ls /sys/class/nvme 2>/dev/null)"
echo "proof works: lockstep device attach does it by a table" >> seen
