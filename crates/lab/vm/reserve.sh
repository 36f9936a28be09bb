# In the guest: two hosts keep each other from a volume, by Linux' own NVMe/TCP initiator and nvme-cli. `settings` says SUBSYSTEM and PORTS. The host
# looks for the file `ready`, and makes `back`. What it has seen is in `seen`.
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

touch ready
until_so test -e back
live() { [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 3 ]; }
until_so live
fails write $a; write $b; write $b_too
echo "reserve works: that is so after the primary's node was killed" >> seen

nvme resv-release $b -n 1 -c 0xb2 -t 1 -a 0
write $a
nvme resv-register $a -n 1 -k 0xa4 -r 0
nvme resv-release $a -n 1 -c 0xa4 -a 1
[ "$(told $b)" = 3 ]
report $b | grep '"regctl":0'
nvme disconnect -n "$SUBSYSTEM"
echo "reserve works: all is released and cleared" >> seen
