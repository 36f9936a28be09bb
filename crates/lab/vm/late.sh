# In the guest: three nodes of its own, and a volume as a disk of this host by ublk. Its node forwards, and is killed while a write of it lies at the primary's node,
# which stands still; the kernel asks the next process for it again, and something newer is written. What it has seen is in `seen`.
set -ex; PS4='+ $SECONDS: '
export LOCKSTEP_DIR=/tmp/c PATH=/tmp/bin:$PATH
mkdir /tmp/bin; cp lockstep lockstepd /tmp/bin/
trap 'set +e; tail -n 8 /tmp/c/*/log; dmesg | tail -n 5; cat /sys/block/ublkb*/inflight' EXIT
lockstep dev up --nodes 3 --detach
lockstep resource create web --size 64MiB --replicas 3; lockstep wait web --for in-sync --timeout 240
disk=/dev/lockstep/by-res/web/0
lockstep device attach web --via ublk --output json | tee /tmp/said
node=$(grep -o 'c/[abc]/admin' /tmp/said | head -n 1 | cut -d/ -f2); [ -n "$node" ]
primary=$(echo a b c | tr ' ' '\n' | grep -v $node | head -n 1)
name=$(basename "$(readlink $disk)")
until_so() { for _ in $(seq 300); do "$@" && return; sleep 0.2; done; echo "never: $*"; false; }
# A primary without clients makes way for a node that has some: this one gets one.
place=$(lockstep --admin /tmp/c/$primary/admin.sock resource show web | grep -o 'nvme+tcp://[^ ]*' | head -n 1); place=${place#nvme+tcp://}
name_of=${place#*/}; name_of=${name_of%/*}; address=${place%%/*}
nvme connect -t tcp -a ${address%:*} -s ${address##*:} -n $name_of -q nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427 \
    -I 1b4e28ba-2fa1-11d2-883f-0016d3cca427 --reconnect-delay=1 --ctrl-loss-tmo=600
pid_of() { for one in $(busybox pidof lockstepd); do if [ "$(readlink /proc/$one/cwd)" = /tmp/c/$1 ]; then echo $one; fi; done; }
put() { head -c 4096 /dev/zero | tr '\0' $1 | dd of=$disk bs=4096 seek=$2 oflag=direct 2> /dev/null; }
holds() { [ "$(dd if=$disk bs=4096 skip=$2 count=1 iflag=direct 2> /dev/null | tr -cd $1 | wc -c)" = 4096 ]; }
# Its bytes are where nobody takes them: only the primary's node has what it does not read.
lies() { for queue in $(awk 'NR > 1 { print substr($5, 10) }' /proc/net/tcp); do if [ $((16#$queue)) -ge 4096 ]; then return 0; fi; done; return 1; }
asks() { [ "$(awk '{ print $2 }' /sys/block/$name/inflight)" -ge 1 ]; }
is_primary() { lockstep status web > /tmp/said; grep "primary $primary" /tmp/said; }
# `round BLOCK BEFORE STAYS`: how long after the write the node is killed, and how long the primary's stands still: until something newer is written, or no more than some time.
round() {
    lockstep wait web --for in-sync --timeout 240
    is_primary || { lockstep resource promote web --node $primary; until_so is_primary; }
    put a $1; holds a $1
    still=$(pid_of $primary); kill -STOP $still
    put o $1 & writer=$!
    until_so asks; until_so lies; sleep $2
    lockstep dev kill $node; lockstep dev start $node
    if [ $3 = newer ]; then
        wait $writer; put n $1; kill -CONT $still
    else
        sleep $3; kill -CONT $still; wait $writer; put n $1
    fi
    for _ in 1 2 3 4; do holds n $1; sleep 0.5; done
    lockstep wait web --for in-sync --timeout 240
    holds n $1
    echo "round $*: the newer one is there"
}
round 1 0.1 newer; round 2 0.5 newer; round 3 0.9 newer
round 4 0.1 0; round 5 0.3 0; round 6 0.1 0.5
. ./verified; verified
for block in 1 2 3 4 5 6; do holds n $block; done
nvme disconnect -n $name_of; lockstep device detach web; test ! -e $disk
if dmesg | grep -iE "i/o error|hung|blocked for more"; then exit 1; fi
echo "ublk works: six times its node was killed while a write of it lay at a primary that stood still; what the kernel asked for again and what was newer stayed" >> seen
