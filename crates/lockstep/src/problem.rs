//! What went wrong, as a person reads it: a code, what it was this time, the cause, the remedy.
//!
//! Nodes answer with their own table (`wire::admin::codes`, LS-0001 and up); what only the command
//! line can meet is listed here, from LS-0900. A number keeps its meaning for ever.
//!
//! Not here: printing (`main`).

use link::IdentityError;
use serde::Serialize;
use wire::admin::{Code, Failure};

/// What a process ends with; scripts rely on the numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// Refused or failed.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// There is no such thing.
    NotFound = 3,
    /// It did not happen in time.
    TimedOut = 4,
}

impl Exit {
    /// What the number of a node's failure stands for; one that is not known here is a failure.
    fn of(number: u8) -> Exit {
        match number {
            2 => Exit::Usage,
            3 => Exit::NotFound,
            4 => Exit::TimedOut,
            _ => Exit::Failed,
        }
    }

    /// The number.
    pub(crate) fn number(self) -> u8 {
        match self {
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::TimedOut => 4,
        }
    }
}

/// A kind of problem that only the command line has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Kind {
    code: &'static str,
    exit: Exit,
    cause: &'static str,
    remedy: &'static str,
}

#[cfg(test)]
impl Kind {
    /// As in `LS-0942`.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// Its row in the table of `docs/cli.md`.
    pub(crate) fn row(&self) -> String {
        let exit = self.exit.number();
        format!("| {} | {exit} | {} | {} |", self.code, self.cause, self.remedy)
    }
}

macro_rules! kinds {
    ($($name:ident = $code:literal, $exit:ident, $cause:literal, $remedy:literal;)*) => {
        $(pub(crate) const $name: Kind =
            Kind { code: $code, exit: Exit::$exit, cause: $cause, remedy: $remedy };)*
        /// All of them, ascending by number; `docs/cli.md` lists the same.
        #[cfg(test)]
        pub(crate) const KINDS: &[Kind] = &[$($name),*];
    };
}

kinds! {
    USAGE = "LS-0900", Usage,
        "A word or value on the command line is not possible.",
        "See `lockstep help` and the command's own --help.";
    NO_CLUSTER = "LS-0901", Usage,
        "Neither --dir, LOCKSTEP_DIR nor --admin says which nodes to ask, and there is no /var/lib/lockstep/admin.sock that this user can see.",
        "On a node's machine: start lockstepd, and ask as root. Else name a node's socket with --admin, once for each node, or a development cluster's directory with --dir or LOCKSTEP_DIR.";
    CLUSTER_ABSENT = "LS-0902", NotFound,
        "The directory holds no development cluster: `lockstep dev up` has not made one there. (Or, of `lockstep cluster`: `cluster make` has not.)",
        "Check the path, or make one with `lockstep dev up --dir DIR`. What `lockstep cluster make` wrote is copied to machines; their nodes are asked by --admin.";
    CLUSTER_DAMAGED = "LS-0903", Failed,
        "The cluster's own files were changed by hand, or are of another release.",
        "Mend the file, or remove the directory and begin anew.";
    CLUSTER_OTHER = "LS-0904", Failed,
        "The directory holds a cluster already, made with other settings.",
        "Use another directory, give the settings it was made with, or remove it.";
    FILE = "LS-0905", Failed,
        "A file or directory cannot be read or written.",
        "The message names it: check permissions and free space.";
    NO_ADDRESS = "LS-0906", Failed,
        "In every network 127.77.X.0 something listens already, or loopback addresses are forbidden here.",
        "Stop other clusters with `lockstep dev down`, then try again.";
    NO_PROGRAM = "LS-0907", Failed,
        "lockstepd does not lie beside this program.",
        "Build it (`cargo build -p lockstepd`), or name it with LOCKSTEPD.";
    NODE_DIED = "LS-0908", Failed,
        "The node's process ended instead of answering; the last lines of its log are shown.",
        "Mend what the log names, then `lockstep dev start NODE`.";
    NODE_ABSENT = "LS-0909", NotFound,
        "No node of this cluster has that name.",
        "`lockstep dev status` lists the nodes of a development cluster. Else each node has to be named by its socket: --admin, once for each.";
    NODE_DOWN = "LS-0910", Failed,
        "The node is not running.",
        "Start it: `systemctl start lockstepd` on its machine, or `lockstep dev start NODE`.";
    UNREACHED = "LS-0911", Failed,
        "Nothing answers on the admin socket: the node is not running, or the socket is closed to this user.",
        "Start the node, or check --admin and the user.";
    FOREIGN_PROCESS = "LS-0912", Failed,
        "The process with the number that was noted is not this node: the note is stale.",
        "Nothing was stopped. `lockstep dev status` shows what runs.";
    PROTOCOL = "LS-0913", Failed,
        "The node and this program are of different releases, or the node failed in the middle.",
        "Use the lockstep that was installed with the node; look into the node's log.";
    RESOURCE_ABSENT = "LS-0914", NotFound,
        "No reachable node knows a resource of that name.",
        "`lockstep resource list` shows the names.";
    RESOURCE_EXISTS = "LS-0915", Failed,
        "A name stands for one resource in the whole cluster.",
        "Choose another name, or remove the old one: `lockstep resource delete NAME`.";
    TOO_FEW_NODES = "LS-0916", Usage,
        "Each replica and each witness needs a node of its own.",
        "Ask for fewer, name more with --nodes, or add nodes.";
    TIMED_OUT = "LS-0917", TimedOut,
        "The state was not reached in time.",
        "`lockstep explain NAME` says what it waits for; wait longer with --timeout.";
    ALREADY_MEMBER = "LS-0918", Failed,
        "The node holds a replica of the resource, or votes as its witness.",
        "Nothing needs to be done; `lockstep status NAME` lists the members.";
    NO_MEMBER = "LS-0919", NotFound,
        "The node holds no replica of the resource and is not its witness.",
        "`lockstep status NAME` lists the members.";
    INTERRUPTED = "LS-0920", Failed,
        "The program was told to stop.",
        "Run it again.";
    DEMO_FAILED = "LS-0921", Failed,
        "Something was not as promised. The directory is kept, with the logs of all nodes.",
        "Look into the logs, and please report it.";
    CLIENT_BROKEN = "LS-0922", Failed,
        "The node closed the NBD connection, or answered with an error.",
        "Look at `lockstep status` and into the node's log.";
    READER_GONE = "LS-0923", Failed,
        "Whoever read this program's output has ended.",
        "Nothing needs to be done.";
    VOLUME_ABSENT = "LS-0924", NotFound,
        "The resource has no volume of that number; the first is 0.",
        "`lockstep resource show NAME` lists its volumes.";
    AMBIGUOUS = "LS-0925", Usage,
        "A node was away while a resource was deleted and another made in its name: it still has the old one.",
        "Say which with --id ID. What only one node still holds: `lockstep resource forget NAME --node NODE` removes that part.";
    CLUSTERS_MIXED = "LS-0926", Failed,
        "Nodes of different clusters were named, or a node's directory holds a node of another cluster.",
        "Name nodes of one cluster; put each node's own directory in its place.";
    STILL_NEEDED = "LS-0927", Failed,
        "What the node holds is no left-over: the resource counts on it, or may.",
        "`lockstep resource remove-replica` takes a member out, `lockstep resource delete` removes a resource everywhere.";
    BAD_NAME = "LS-0928", Usage,
        "A client's name is 1 to 64 letters, digits and - _ . @ and names no path.",
        "Choose another name.";
    CERTIFICATE_EXISTS = "LS-0929", Failed,
        "The directory holds a client's certificate already, which would be lost with its key.",
        "Name another directory with --out, or move the old files away.";
    COPY_IS_OLDER = "LS-0930", Failed,
        "To force a node makes its copy the one that all others follow; what only they hold is lost.",
        "Force the node that holds more. To lose that all the same: --discard-newer.";
    NEEDLESS = "LS-0931", Failed,
        "To force a node gives up the other copies, and is for a resource that cannot go on otherwise.",
        "`lockstep resource promote` makes another node primary. To give the other copies up all the same: --discard-newer.";
    HOST_UNFIT = "LS-0932", Failed,
        "This machine lacks what a node cannot do without.",
        "Each line that says `missing` has its remedy below the table; then `lockstep doctor` again.";
    NO_WAY = "LS-0933", Failed,
        "This host has no way, of those that were tried, to make a disk of the volume; the message says why of each.",
        "`lockstep doctor` says what helps; `lockstep resource show NAME` says where the volume is.";
    DISK_IN_USE = "LS-0934", Failed,
        "A disk that is mounted, used for swap, held by another device, or open in a program is not taken away, nor one that does not answer.",
        "End what the message names. To take it away all the same, with I/O errors for whoever uses it: --force.";
    NOT_ATTACHED = "LS-0935", NotFound,
        "The volume is no disk of this host, as far as it is written down.",
        "`lockstep device list` shows what is attached.";
    ATTACHED_OTHERWISE = "LS-0936", Failed,
        "The name of the disk stands for another volume, or for the same one made another way.",
        "Take the first away: `lockstep device detach NAME`. Where that is not attached, as far as is written down: end it by the kernel's own means (`nvme disconnect -n NQN`, `nbd-client -d DISK`) or, if the link is only left over, remove the link.";
    KEPT_ALREADY = "LS-0937", Failed,
        "Another process looks after the disks of this host.",
        "Nothing needs to be done.";
    NO_LOCAL_NODE = "LS-0938", Usage,
        "A machine has a volume by a node of its own host, and it is not clear which one that is.",
        "Name the node with --node NODE, or its admin socket with --admin SOCKET.";
    BAD_NVME_HOST = "LS-0940", Failed,
        "An NVMe host's name is its qualified one, `nqn.` and what follows; a table has each host once.",
        "`cat /etc/nvme/hostnqn` on the host tells its name; to give it another secret change its lines in the table.";
    NVME_KEYS = "LS-0941", Failed,
        "A table names this host by its qualified name, with its secret or its key for TLS, and only its owner can read it.",
        "`cat /etc/nvme/hostnqn` tells this host's name; `lockstep nvme-host NQN --table FILE` makes its lines, for this host and for the nodes.";
}

/// A problem, ready to be shown.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Problem {
    /// As in `LS-0042`.
    pub(crate) code: String,
    /// What went wrong this time.
    pub(crate) message: String,
    /// What usually lies behind it.
    pub(crate) cause: String,
    /// What to do.
    pub(crate) remedy: String,
    /// What the process ends with.
    pub(crate) exit: u8,
}

impl From<IdentityError> for Problem {
    fn from(error: IdentityError) -> Problem {
        let kind = if matches!(error, IdentityError::Name(_)) { BAD_NAME } else { FILE };
        Problem::new(kind, error.to_string())
    }
}

impl Problem {
    /// A problem of this kind; `message` names the thing.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Problem {
        Problem {
            code: kind.code.to_owned(),
            message: message.into(),
            cause: kind.cause.to_owned(),
            remedy: kind.remedy.to_owned(),
            exit: kind.exit.number(),
        }
    }

    /// A problem of a kind that nodes have too.
    pub(crate) fn from_code(code: &Code, message: impl Into<String>) -> Problem {
        Problem {
            code: code.code.to_owned(),
            message: message.into(),
            cause: code.cause.to_owned(),
            remedy: code.remedy.to_owned(),
            exit: Exit::of(code.exit).number(),
        }
    }

    /// A problem that a node named.
    pub(crate) fn from_node(node: &str, failure: Failure) -> Problem {
        Problem {
            code: failure.code,
            message: format!("node {node}: {}", failure.message),
            cause: failure.cause,
            remedy: failure.remedy,
            exit: Exit::of(failure.exit).number(),
        }
    }

    /// Whether it is the one that `code` names.
    pub(crate) fn is(&self, code: &Code) -> bool {
        self.code == code.code
    }

    /// Whether it is of this kind.
    pub(crate) fn is_kind(&self, kind: Kind) -> bool {
        self.code == kind.code
    }

    /// A file or directory that cannot be used.
    pub(crate) fn file(path: &std::path::Path, error: &std::io::Error) -> Problem {
        Problem::new(FILE, format!("{}: {error}", path.display()))
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "error {}: {}\n  cause:  {}\n  remedy: {}",
            self.code, self.message, self.cause, self.remedy
        )
    }
}
