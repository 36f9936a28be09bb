# In two guests at once, a and b: DRBD on a disk of each, Lockstep on another of each, and a disk of a's that nobody replicates. `settings` says who this is
# (ROLE), the volumes' SIZE in MiB, REPEATS, SECONDS_EACH and WARM; `jobs` has a line for each workload: its number, fio's rw, KiB, depth.
# What fio saw is in SUBJECT-NUMBER-REPEAT.json of a's share, and how long the processors of both were busy meanwhile, in ticks of 10 ms, beside it
# in .busy. The two meet in `both`.
set -ex
. ./settings
export PATH=$PWD:$PATH DRBD_DONT_WARN_ON_VERSION_MISMATCH=1
both=/tmp/both n=/tmp/n
trap 'set +e; tail -n 8 $n/log; dmesg | tail -n 4; echo "$ROLE ended" > $both/ended' EXIT
mkdir $both; mount -t 9p -o trans=virtio,version=9p2000.L both $both
# Waits for the other to have come so far.
meet() (set +x; touch "$both/$ROLE-$1"; until [ -e "$both/$OTHER-$1" ]; do test ! -e $both/ended; sleep 0.2; done)
# A wait that starts no program.
mkfifo /tmp/nobody; exec 9<>/tmp/nobody
nap() { read -rt "$1" -u 9 || true; }
# How long this machine's processors were busy since it began.
busy() (set +x; read -r _ user nice system _ _ irq soft steal _ < /proc/stat; echo $((user + nice + system + irq + soft + steal)))
# Says that as often as the other asks, until it is done.
tell_busy() (
    set +x; count=1
    until [ -e $both/a-done ]; do
        [ ! -e $both/ended ] || [ -e $both/a-done ]
        if [ -e $both/ask-$count ]; then
            busy > $both/answer; mv $both/answer $both/busy-$count; count=$((count + 1))
        fi
        nap 0.2
    done
)
# The same of both, in `total`.
asked=0
ask_busy() {
    asked=$((asked + 1)); touch $both/ask-$asked; total=$(busy)
    (set +x; until [ -e $both/busy-$asked ]; do test ! -e $both/ended; nap 0.1; done)
    total=$((total + $(cat $both/busy-$asked)))
}
declare -A address=([a]=10.9.0.1 [b]=10.9.0.2)
OTHER=$(echo a b | tr ' ' '\n' | grep -v "$ROLE")
own=${address[$ROLE]} other=${address[$OTHER]}
ip link set eth1 up; ip addr add "$own/24" dev eth1
for module in virtio_blk lru_cache ublk_drv; do modprobe $module; done
modprobe drbd usermode_helper=/bin/true
mkdir -p /var/lock /var/lib/drbd
raw=/dev/vda low=/dev/vdb store=/dev/vdc

drbdmeta --force 0 v08 $low internal create-md
drbdsetup-84 new-resource web; drbdsetup-84 new-minor web 0 0; drbdsetup-84 attach 0 $low $low internal
drbdsetup-84 connect web ipv4:$own:7788 ipv4:$other:7788 --protocol=C --max-buffers=8000 --sndbuf-size=0

cp -r home $n; chmod 700 $n
lockstepd node --dir $n > $n/log 2>&1 &
until [ -S $n/admin.sock ]; do sleep 0.2; done
[ "$ROLE" = a ] || carry $own:7000 $n/admin.sock &
meet up
if [ "$ROLE" = b ]; then tell_busy; exit; fi

# Neither side has anything that the other lacks: no first resync.
timeout 60 bash -c 'until grep cs:Connected /proc/drbd; do sleep 0.2; done'
drbdsetup-84 new-current-uuid 0 --clear-bitmap; drbdsetup-84 primary 0
grep ds:UpToDate/UpToDate /proc/drbd

carry /tmp/b.sock $other:7000 &
until [ -S /tmp/b.sock ]; do sleep 0.2; done
lockstep() { command lockstep --admin $n/admin.sock --admin /tmp/b.sock "$@"; }
for node in a b; do
    printf '[[members]]\nnode = "%s"\nstores = [{ volume = 0, kind = "device", path = "%s" }]\n' $node $store
done > /tmp/web.toml
printf '[[volumes]]\nsize = "%sMiB"\n' "$SIZE" >> /tmp/web.toml
lockstep resource create web --from /tmp/web.toml; lockstep wait web --for in-sync --timeout 120
lockstep device attach web --via ublk
ls -l /dev/lockstep/by-res/web/0 /dev/drbd0
disk() {
    case $1 in raw) echo $raw;; drbd*) echo /dev/drbd0;; lockstep) echo /dev/lockstep/by-res/web/0;; esac
}
for subject in raw drbd lockstep; do
    fio --name=fill --filename=$(disk $subject) --ioengine=libaio --direct=1 --rw=write --bs=1M --iodepth=4 --size=${SIZE}M --output=/tmp/fill
done
flushes() { drbdsetup-84 disk-options 0 --disk-flushes=$1 --disk-barrier=no --md-flushes=$1; }
for repeat in $(seq "$REPEATS"); do
    subjects="raw drbd drbd-unflushed lockstep"
    # Every second turn goes the other way round.
    [ $((repeat % 2)) = 1 ] || subjects="lockstep drbd-unflushed drbd raw"
    while read -r number rw kib depth; do
        for subject in $subjects; do
            case $subject in drbd) flushes yes;; drbd-unflushed) flushes no;; esac
            words="--name=m --filename=$(disk $subject) --ioengine=libaio --direct=1 --randrepeat=0 --norandommap --rw=$rw --bs=${kib}k --iodepth=$depth"
            words="$words --size=${SIZE}M --time_based --lat_percentiles=1 --clat_percentiles=0 --output-format=json --output=/tmp/report"
            # One of its own, for what it costs is not to count.
            [ "$WARM" = 0 ] || fio $words --runtime=${WARM}ms
            ask_busy; before=$total
            fio $words --runtime=${SECONDS_EACH}ms
            ask_busy; echo $((total - before)) > $subject-$number-$repeat.busy
            cp /tmp/report $subject-$number-$repeat.json
        done
    done < jobs
    touch repeat-$repeat
done
lockstep resource show web
lockstep device detach web
touch $both/a-done
