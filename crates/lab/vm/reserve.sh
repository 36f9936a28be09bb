# In the guest: two hosts keep each other from a volume, by Linux' own NVMe/TCP initiator and nvme-cli. `settings` says SUBSYSTEM and PORTS. The host
# looks for the files `ready`, `again` and `reserved`, and makes `back`, `all-back` and `kept`. What it has seen is in `seen`.
set -ex
. ./settings
# Each connection its own disk: Linux takes the paths of all hosts in it for those of one.
for module in nvme_tcp nvme_fabrics nvme_core; do busybox rmmod $module; done
modprobe nvme_core multipath=N; modprobe nvme-tcp; grep N /sys/module/nvme_core/parameters/multipath
id=1b4e28ba-2fa1-11d2-883f-0016d3cca42 uuid=nqn.2014-08.org.nvmexpress:uuid
until_so() { for _ in $(seq 150); do "$@" && return; sleep 0.2; done; ls /dev/nvme*; dmesg | grep -i nvme | tail; echo "never: $*"; false; }
link() { nvme connect -t tcp -a 10.0.2.2 -k 5 --reconnect-delay=2 --ctrl-loss-tmo=600 -q $uuid:$id$1 -I $id$1 -s $2 -n $SUBSYSTEM; until_so test -b $3; }
write() { dd if=/dev/urandom of=$1 bs=4096 count=1 conv=fsync; }
fails() { if "$@"; then echo "it did not fail: $*"; exit 1; fi; }
report() { nvme resv-report $1 -n 1 -e -o json | tr -d ' \n'; }
told() { nvme get-log ${1%n1} --log-id=0x80 --log-len=64 -b | od -An -tu1 -j8 -N1 | tr -d ' \n'; }
set -- $PORTS
a=/dev/nvme0n1 b=/dev/nvme1n1 b_too=/dev/nvme2n1
link 7 $1 $a; link 8 $2 $b; link 8 $3 $b_too

# Who the host is, as the node was told.
[ "$(nvme get-feature ${a%n1} -f 0x81 -c 1 -l 16 -b | od -An -tx1 | tr -d ' \n')" = "$(echo ${id}7 | tr -d -)" ]
report $a | grep '"regctl":0'
nvme resv-register $a -n 1 -k 0xa1 -r 0 -p 3
nvme resv-register $b -n 1 -k 0xb2 -r 0
fails nvme resv-register $b -n 1 -k 0xb3 -r 0
write $a; write $b
nvme get-feature $a -n 1 -f 0x83 | grep 0x*1

nvme resv-acquire $a -n 1 -c 0xa1 -t 1 -a 0
fails nvme resv-acquire $b -n 1 -c 0xb2 -t 1 -a 0
write $a; fails write $b; fails write $b_too
echo 3 > /proc/sys/vm/drop_caches; dd if=$a of=/tmp/a bs=4096 count=1; dd if=$b_too of=/tmp/b bs=4096 count=1; cmp /tmp/a /tmp/b
report $b_too | tee -a report; grep -q '"rtype":1' report
echo "reserve works: who has not reserved it reads and cannot write, by any node" >> seen

[ "$(told $a)" = 0 ]
nvme resv-acquire $b -n 1 -c 0xb2 -p 0xa1 -t 1 -a 1
write $b; write $b_too; fails write $a
[ "$(told $a)" = 1 ]; [ "$(told $a)" = 0 ]
echo "reserve works: who is preempted hears of it, and cannot write any more" >> seen

# Preempted and aborted; keys are replaced, with the old one and without.
nvme resv-register $a -n 1 -k 0xa1 -r 0
nvme resv-acquire $a -n 1 -c 0xa1 -p 0xb2 -t 1 -a 2
write $a; fails write $b; fails write $b_too
[ "$(told $b)" != 0 ]; told $b_too
nvme resv-register $b -n 1 -k 0xb2 -r 0
fails nvme resv-register $b -n 1 -c 0xb7 -k 0xb3 -r 2
nvme resv-register $b -n 1 -c 0xb2 -k 0xb3 -r 2; nvme resv-register $b -n 1 -k 0xb2 -r 2 -i
nvme resv-acquire $b -n 1 -c 0xb2 -p 0xa1 -t 1 -a 1
write $b; fails write $a; [ "$(told $a)" = 1 ]; [ "$(told $a)" = 0 ]
echo "reserve works: preempt and abort, and keys that are replaced" >> seen

touch ready
until_so test -e back
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 3 ]; }
until_so live
fails write $a; write $b; write $b_too
echo "reserve works: that is so after the primary's node was killed" >> seen

touch again; until_so test -e all-back; until_so live
fails write $a; write $b; write $b_too; report $a | grep '"rtype":1'
echo "reserve works: that is so after all nodes were killed at once" >> seen

nvme resv-release $b -n 1 -c 0xb2 -t 1 -a 0
write $a
nvme resv-register $a -n 1 -k 0xa4 -r 0
nvme resv-release $a -n 1 -c 0xa4 -a 1
[ "$(told $b)" = 3 ]
report $b | grep '"regctl":0'
echo "reserve works: all is released and cleared" >> seen

# Each kind: whether who is not registered may read it, then whether who is may, and write it, by each of its paths. Nobody who is not registered writes.
reads() { dd if=$1 of=/dev/null bs=4096 count=1 iflag=direct; }
puts() { dd if=/dev/zero of=$1 bs=4096 count=1 oflag=direct; }
may() { if [ $1 = y ]; then "$2" $3; else fails "$2" $3; fi; }
is_kind() { report $1 > report; cat report; grep "\"rtype\":$2[,}]" report; }
check() {
    kind=$1 outside=$2 inside=$3 writes=$4
    nvme resv-register $a -n 1 -k 0xa1 -r 0; nvme resv-acquire $a -n 1 -c 0xa1 -t $kind -a 0
    reads $a; puts $a
    for path in $b $b_too; do may $outside reads $path; may n puts $path; done
    nvme resv-register $b -n 1 -k 0xb2 -r 0; is_kind $b_too $kind
    for path in $b $b_too; do may $inside reads $path; may $writes puts $path; done
    # Who holds it goes. Of the last two kinds every registrant does.
    nvme resv-register $a -n 1 -c 0xa1 -r 1
    if [ $kind -ge 5 ]; then
        is_kind $a $kind; may $outside reads $a; may n puts $a; reads $b; puts $b_too
        nvme resv-release $b -n 1 -c 0xb2 -t $kind -a 0
    fi
    is_kind $a 0; for path in $a $b $b_too; do reads $path; puts $path; done
    nvme resv-release $b -n 1 -c 0xb2 -a 1
}
check 1 y y n; check 2 n n n; check 3 y y y; check 4 n y y; check 5 y y y; check 6 n y y
echo "reserve works: of all six kinds, for who is registered and who is not, by every node, and when the holder goes" >> seen
nvme disconnect -n "$SUBSYSTEM"

# One host with two paths to one disk: it registers by one of them, and writes by each; another host does not.
for module in nvme_tcp nvme_fabrics nvme_core; do busybox rmmod $module; done
modprobe nvme_core multipath=Y; modprobe nvme-tcp
link 7 $1 $a; link 7 $2 $a
paths() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = $1 ]; }
until_so paths 2; test "$(ls /dev/nvme*n1 | wc -l)" = 1
nvme resv-register $a -n 1 -k 0xa1 -r 0; nvme resv-acquire $a -n 1 -c 0xa1 -t 1 -a 0
puts $a; touch reserved; until_so test -e kept
nvme disconnect -d nvme0; paths 1; puts $a; reads $a
link 7 $1 $a; until_so paths 2
nvme disconnect -d nvme1; paths 1; puts $a; reads $a; is_kind $a 1
nvme resv-release $a -n 1 -c 0xa1 -a 1; nvme disconnect -n "$SUBSYSTEM"
echo "reserve works: a host with two paths registers by one and writes by each, and another host does not" >> seen
