# In the guest: what `lockstep doctor` says of its kernel, before drivers are loaded and after. `settings` says UBLK (1: it has it, 2: and disks can grow) and
# NAMES (2: its NBD client keeps a name with each disk), which other labs find by using them. What it has seen is in `seen`.
set -ex
. ./settings
cp lockstep /bin/
doctor() { lockstep doctor /tmp > /tmp/doctor || true; }
says() { grep -E "^$1 +$2 +$3" /tmp/doctor; }
doctor; cat /tmp/doctor
says nvme-tcp ok; says "NVMe multipath" ok native; says nbd degraded "not loaded"
if [ $UBLK = 0 ]; then says ublk missing; else says ublk degraded "not loaded"; fi
modprobe nbd; modprobe ublk_drv || test $UBLK = 0
doctor; cat /tmp/doctor
case $UBLK in 0) says ublk missing;; 1) says ublk ok ".*they keep their size";; 2) says ublk ok ".*can grow";; esac
if [ $NAMES = 2 ]; then says nbd ok; else says nbd degraded "keeps no name"; fi
echo "doctor works: nvme-tcp, multipath, ublk and nbd are as they are" >> seen
