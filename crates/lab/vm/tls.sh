# In the guest: Linux' own NVMe/TCP initiator speaks TLS with three nodes, whose handshake tlshd makes. `settings` says HOST, ID, SUBSYSTEM, PORTS,
# HAS (1: this kernel can do it), and keys: KEY and NEXT of this host, WRONG of nobody. `tools` has programs of a newer Debian. The host looks for the files `ready` and `changed`, and
# makes `back`, `both` and `only`. What it has seen is in `seen`.
set -ex
. ./settings
tool() { local name=$1; shift; /host/tools/lib/ld-linux-x86-64.so.2 --library-path /host/tools/lib /host/tools/bin/$name "$@"; }
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
link() { tool nvme connect -t tcp -a 10.0.2.2 -k 5 --reconnect-delay=2 -q $HOST -I $ID -n $SUBSYSTEM "$@"; }
refuses() { if link "$@"; then echo "not refused: $*"; false; fi; test -z "$(ls /sys/class/nvme 2>/dev/null)"; }
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 3 ]; }
know() { tool nvme check-tls-key --hostnqn=$HOST --subsysnqn=$SUBSYSTEM --insert --identity=$1 --keydata=$2; }
set -- $PORTS
prepare() {
    cp lockstep /bin/; mkdir -p /etc/nvme; echo $HOST > /etc/nvme/hostnqn; echo $ID > /etc/nvme/hostid
    places=$(printf ",nvme+tcp://10.0.2.2:%s/$SUBSYSTEM/1" "$@")
}
attach() { lockstep device attach web --via nvme --from "${places#,}" "$@"; }
table() { printf '[[hosts]]\nnqn = "%s"\ntls_key = "%s"\n' $HOST $1 > /tmp/keys; chmod 600 /tmp/keys; }

if [ "$HAS" != 1 ]; then
    refuses -s $1
    refuses -s $1 --tls
    prepare "$@"; table $KEY
    if attach --nvme-keys /tmp/keys > /tmp/said 2>&1; then exit 1; fi
    cat /tmp/said; dmesg | grep -i nvme | tail -n 4; grep -q "LS-0933" /tmp/said; test -z "$(ls /sys/class/nvme 2>/dev/null)"
    echo "tls refused: built without; nothing is left behind" >> seen
    exit
fi

modprobe nvme-keyring; modprobe tls
printf '[debug]\nloglevel=1\ntls=0\n[authenticate]\nkeyrings=.nvme\n' > /etc/tlshd.conf
tool tlshd -s -c /etc/tlshd.conf > tlshd.log 2>&1 &
tool nvme discover -t tcp -a 10.0.2.2 -s $1 -q $HOST -I $ID > discovered; cat discovered
grep -i "sectype.*tls.*1.*3\|sectype.*tls13" discovered; grep -i "treq.*required" discovered
refuses -s $1
refuses -s $1 --tls
know 0 $WRONG; refuses -s $1 --tls
echo "tls works: no TLS, no key and a wrong one are refused" >> seen

know 0 $KEY
for port in "$@"; do link -s $port --tls; done
disk=/dev/nvme0n1
until_so test -b $disk
until_so live
cat /proc/net/tls_stat; grep "TlsRxSw[[:space:]]*[1-9]" /proc/net/tls_stat; grep "TlsTxSw[[:space:]]*[1-9]" /proc/net/tls_stat
mkfs.ext4 -q $disk; mount -t ext4 $disk /mnt; touch ready
fio --name=z --filename=/mnt/f --size=16M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
fio --name=w --filename=/mnt/e --size=16M --rw=write --bs=1M --ioengine=libaio --iodepth=4 --direct=1 --verify=crc32c --verify_fatal=1
until_so test -e back
until_so live
echo "tls works: a node that came back is spoken to by TLS anew" >> seen

# Another key, by the other form of its identity, while the disk is in use; until then both will do. One for the other suite would not do: this tlshd
# binds every key with SHA-256.
until_so test -e both
know 1 $NEXT
for one in /sys/class/nvme/nvme*; do echo 1 > $one/reset_controller; sleep 2; until_so live; done
touch changed
fio --name=y --filename=/mnt/g --size=8M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
until_so test -e only
fio --name=x --filename=/mnt/h --size=8M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1
until_so live
grep "TlsDecryptError[[:space:]]*0" /proc/net/tls_stat
umount /mnt; fsck.ext4 -fn $disk
if dmesg | grep -i "i/o error"; then exit 1; fi
tool nvme disconnect -n "$SUBSYSTEM"
echo "tls works: its key is changed while the disk is in use, and the form of its identity with it" >> seen

# `lockstep device` speaks TLS by a table; its key takes the place of the one before.
touch left; until_so test -e other
prepare "$@"
if attach; then exit 1; fi
table $NEXT; if attach --nvme-keys /tmp/keys; then exit 1; fi
test -z "$(ls /sys/class/nvme 2>/dev/null)"
table $WRONG; attach --nvme-keys /tmp/keys; until_so live
grep psk /proc/keys; [ "$(grep -c "psk .*$SUBSYSTEM" /proc/keys)" = 1 ]
fsck.ext4 -fn /dev/lockstep/by-res/web/0
if grep "${WRONG:16:20}" /var/lib/lockstep/*; then exit 1; fi
lockstep device detach web; test -z "$(ls /sys/class/nvme 2>/dev/null)"
echo "tls works: lockstep device attach does it by a table" >> seen
