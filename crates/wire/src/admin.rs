//! What is said on a node's admin socket: one JSON value a line, both ways.
//!
//! A client sends `Request`s; each is answered by one `Reply` with its id, `Events` by one after
//! another until the connection ends. Replies to different requests may overtake each other.
//!
//! Always: a request with a field that is not known here is refused, because a misspelt one would
//! silently mean something else; in a reply, what a newer node adds is passed over. No line is longer
//! than `LINE_BYTES_MAX`.
//!
//! Not here: the socket and who may open it (`lockstepd`), waiting for a state (the client asks, or
//! listens to events). Described in `docs/formats/admin.md`, errors in `docs/errors.md`.

pub mod codes;
mod file;
mod hex;
mod settings;
mod status;

pub use codes::Code;
pub use file::{
    FileError, FileMember, FileNode, FileStore, FileTiming, FileVolume, LOG_EXTENTS,
    LOG_EXTENTS_USUAL, NAME_BYTES_MAX, OptionsChange, ResourceFile, StoreKind, VOLUME_BYTES_MAX,
    check_name,
};
pub use settings::with_quotes;
pub use status::{
    Event, Faults, Growing, NodeStatus, PeerStatus, ReplicaState, ReplicaStatus, ResourceStatus,
    Resync, ResyncDone, Rot, SplitBrain, Status, VerifyProgress, Verifying, VolumeStatus,
};

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of this protocol.
pub const VERSION: u16 = 1;
/// Longest line in bytes, its end included: a status of 1 000 resources takes about 700 KiB.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// What a client asks.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// `VERSION`.
    pub version: u16,
    /// Chosen by the client; the reply repeats it.
    pub id: u64,
    /// The resource that the command acts on must have this identity, else it is refused (`OTHER_IDENTITY`): where a
    /// node was away, two resources may have one name. Left out: whichever the node knows by the name.
    #[serde(default, with = "hex::option", skip_serializing_if = "Option::is_none")]
    pub identity: Option<u64>,
    /// What is to be done.
    pub command: Command,
}

/// What a node can be asked for.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Are you there? Answer: `Pong`.
    Ping {},
    /// The node itself. Answer: `Node`.
    NodeStatus {},
    /// Keep a name for who asks, as long as this connection lasts: nobody else may, so that one resource of it is made
    /// at a time. Answer: `Done`; refused (`BUSY`) while another connection has it.
    ResourceReserve {
        /// The name.
        resource: String,
    },
    /// Know this resource, or know it anew: nodes, addresses, members. Answer: `Done`.
    ResourceDefine {
        /// All about it.
        file: Box<ResourceFile>,
    },
    /// Make this node's own part of a defined resource: store and metadata. Answer: `Done`.
    ResourceCreate {
        /// Its name.
        resource: String,
        /// Even where something is already.
        #[serde(default)]
        force: bool,
    },
    /// Stop serving it and remove this node's own part, data included. Answer: `Done`.
    ResourceDelete {
        /// Its name.
        resource: String,
        /// Even while it is in use, or the last copy.
        #[serde(default)]
        force: bool,
        /// Only if nobody ever was primary of it, as far as this node knows; else refused (`IN_USE`).
        #[serde(default)]
        unused: bool,
    },
    /// Stop knowing it, and tell no other node. Answer: `Done`.
    ResourceForget {
        /// Its name.
        resource: String,
        /// Remove what this node stores of it, too; else store and metadata are left where they are.
        #[serde(default)]
        stores: bool,
    },
    /// Know this node as one of the resource's, as a client: it may speak about it. Answer: `Done`.
    ResourceAdmit {
        /// Its name.
        resource: String,
        /// The node.
        node: FileNode,
    },
    /// Know this node as one of the resource's no more; refused of a member. Answer: `Done`.
    ResourceDismiss {
        /// Its name.
        resource: String,
        /// The node's number.
        node: u16,
    },
    /// What this node knows a resource to be: as it was defined here, with the members and options of the newest
    /// configuration. Its volumes have the sizes that they began with, for which every store is laid out; what they
    /// have now is in the status. Answer: `File`.
    ResourceFile {
        /// Its name.
        resource: String,
    },
    /// How resources are. Answer: `Status`.
    Status {
        /// Only this one.
        #[serde(default)]
        resource: Option<String>,
    },
    /// How resources are, as many as fit into one answer, ascending by name: for who was told that all of them do not
    /// (`REPLY_TOO_LONG`). Answer: `Status`, with `more` if there are others.
    StatusPage {
        /// Only those whose names come after this one.
        after: String,
    },
    /// Change a resource. Answer: `Done`, once it holds.
    Operation {
        /// Its name.
        resource: String,
        /// What is to be done.
        operation: Operation,
    },
    /// Tell every change of status from now on, and how things are first. Answers: `Event`, many.
    Events {
        /// Only of this one.
        #[serde(default)]
        resource: Option<String>,
    },
    /// End the process. Answer: `Done`, before it ends.
    Stop {
        /// Drain, flush and hand over first.
        graceful: bool,
    },
    /// Read the node's certificate, key, authorities and revocations again; sessions of who is revoked
    /// end, everything else goes on. Answer: `Done`.
    Reload {},
    /// A hash of what this node's replica holds; only of a replica that is not in use. Answer:
    /// `Dump`.
    Dump {
        /// Its name.
        resource: String,
    },
    /// Make a volume a disk of this node's host, by the kernel's ublk driver; of one that is such a disk already, tell
    /// which. Answer: `HostDisk`, once it is there; refused (`NO_UBLK`) where the host has no such driver.
    UblkAttach {
        /// Its name.
        resource: String,
        /// The volume's index.
        #[serde(default)]
        volume: u16,
    },
    /// Take that disk away, also from those who use it. Answer: `Done`, once it is gone.
    UblkDetach {
        /// Its name.
        resource: String,
        /// The volume's index.
        #[serde(default)]
        volume: u16,
    },
    /// The disks that this node makes. Answer: `HostDisks`.
    UblkList {},
    /// Listen on a socket of a volume, for machines of this node's host (vhost-user); of one that has one already, tell
    /// where. Answer: `VhostSocket`.
    VhostAdd {
        /// Its name.
        resource: String,
        /// The volume's index.
        #[serde(default)]
        volume: u16,
        /// Whose members may connect, too; only the node's own user if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<String>,
    },
    /// Remove that socket, and send its machine away. Answer: `Done`.
    VhostRemove {
        /// Its name.
        resource: String,
        /// The volume's index.
        #[serde(default)]
        volume: u16,
    },
    /// The sockets for machines that this node has. Answer: `VhostSockets`.
    VhostList {},
}

impl Command {
    /// The resource that it changes or reads from, by name. `None` where nothing is changed and every answer names
    /// identities (`Status`, `StatusPage`, `Events`), or the command brings its own (`ResourceDefine`).
    #[must_use]
    pub fn acts_on(&self) -> Option<&str> {
        match self {
            Command::ResourceCreate { resource, .. }
            | Command::ResourceDelete { resource, .. }
            | Command::ResourceForget { resource, .. }
            | Command::ResourceAdmit { resource, .. }
            | Command::ResourceDismiss { resource, .. }
            | Command::ResourceFile { resource }
            | Command::Operation { resource, .. }
            | Command::Dump { resource }
            | Command::UblkAttach { resource, .. }
            | Command::UblkDetach { resource, .. }
            | Command::VhostAdd { resource, .. }
            | Command::VhostRemove { resource, .. } => Some(resource),
            Command::Ping {}
            | Command::NodeStatus {}
            | Command::ResourceReserve { .. }
            | Command::ResourceDefine { .. }
            | Command::Status { .. }
            | Command::StatusPage { .. }
            | Command::Events { .. }
            | Command::Stop { .. }
            | Command::Reload {}
            | Command::UblkList {}
            | Command::VhostList {} => None,
        }
    }
}

/// What can be done to a resource.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// Make this node primary.
    Promote {},
    /// Make this node not primary.
    Demote {},
    /// Add a replica or witness.
    AddReplica {
        /// Who and how.
        member: Box<FileMember>,
        /// Its node, if the resource does not know it yet.
        #[serde(default)]
        node: Option<FileNode>,
    },
    /// Remove a replica or witness.
    RemoveReplica {
        /// On which node.
        node: u16,
    },
    /// Set a volume's size.
    Resize {
        /// Its index.
        volume: u16,
        /// In bytes; a multiple of the block.
        size_bytes: u64,
        /// Even if it becomes smaller, and what lies beyond is lost.
        #[serde(default)]
        allow_shrink: bool,
    },
    /// Forget this node's copy and copy it anew from the others.
    Invalidate {},
    /// Hold all requests back.
    Suspend {},
    /// Let them go on.
    Resume {},
    /// Hold resync back.
    PauseResync {},
    /// Let it go on.
    ResumeResync {},
    /// On the node that is asked: requests that wait for nodes that are missing get an error, until those are back.
    FailWaiting {},
    /// End that: let them wait.
    LetWait {},
    /// Compare all replicas and repair: go on with what runs or was stopped, if there is such, else begin.
    Verify {
        /// Begin anew in any case.
        #[serde(default)]
        anew: bool,
    },
    /// Stop that; it can go on later.
    StopVerify {},
    /// Go on from this node's copy although the rules say to wait: makes a fork.
    Force {},
    /// End a split brain: this node's side goes on, that of another node is given up.
    Resolve {
        /// Number of a node on the side that is given up.
        discard: u16,
    },
    /// Change options.
    SetOptions {
        /// The ones to change.
        options: OptionsChange,
    },
    /// End the present cut.
    Cut {},
}

/// What a node answers.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// `VERSION`.
    pub version: u16,
    /// Of the request; 0 if it could not be read.
    pub id: u64,
    /// `"result"` or `"error"`.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How it went.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As asked.
    Result(Box<Answer>),
    /// Not.
    Error(Failure),
}

/// What was asked for.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Answer {
    /// To `Ping`.
    Pong {
        /// Version of the program.
        program: String,
        /// Name of the node.
        node: String,
    },
    /// It is done.
    Done {},
    /// To `NodeStatus`.
    Node(NodeStatus),
    /// To `Status`.
    Status(Status),
    /// To `Events`, again and again.
    Event(Box<Event>),
    /// To `Dump`.
    Dump(Dump),
    /// To `ResourceFile`.
    File(Box<ResourceFile>),
    /// To `UblkAttach`.
    HostDisk(HostDisk),
    /// To `UblkList`.
    HostDisks {
        /// The host's kernel, as `/proc/sys/kernel/random/boot_id` names it.
        host: String,
        /// Ascending by number.
        disks: Vec<HostDisk>,
    },
    /// To `VhostAdd`.
    VhostSocket(VhostSocket),
    /// To `VhostList`.
    VhostSockets {
        /// The host's kernel, as `/proc/sys/kernel/random/boot_id` names it.
        host: String,
        /// Ascending by resource and volume.
        sockets: Vec<VhostSocket>,
    },
}

/// A socket by which a machine of the node's host has a volume as its disk.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct VhostSocket {
    /// The resource's name.
    pub resource: String,
    /// The volume's index.
    pub volume: u16,
    /// Where it is.
    pub path: String,
    /// Whose members may connect, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether a machine is there.
    pub connected: bool,
}

/// A volume as a disk of its node's host.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct HostDisk {
    /// It is `/dev/ublkb` and this.
    pub number: u32,
    /// The resource's name.
    pub resource: String,
    /// The volume's index.
    pub volume: u16,
    /// Whether its users are served; else it is being made, taken up, or taken away.
    pub ready: bool,
}

/// What one replica holds.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// The resource's name.
    pub resource: String,
    /// The node's name.
    pub node: String,
    /// One hash for each volume, ascending by index.
    pub volumes: Vec<DumpVolume>,
}

/// What one volume of one replica holds. Replicas are the same if their hashes are.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct DumpVolume {
    /// The volume's index.
    pub volume: u16,
    /// Its size.
    pub size_bytes: u64,
    /// Of all its bytes, hexadecimal.
    pub hash: String,
}

/// Why something was not done, for people and programs.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Names the entry in `codes`, as in `LS-0042`.
    pub code: String,
    /// What went wrong this time.
    pub message: String,
    /// What usually lies behind it.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// What the command line ends with.
    pub exit: u8,
}

impl Failure {
    /// The failure that `code` stands for; `message` says what it was this time.
    #[must_use]
    pub fn new(code: &Code, message: impl Into<String>) -> Failure {
        Failure {
            code: code.code.to_string(),
            message: message.into(),
            cause: code.cause.to_string(),
            remedy: code.remedy.to_string(),
            exit: code.exit,
        }
    }
}

impl Request {
    /// A request of this version.
    #[must_use]
    pub fn new(id: u64, command: Command) -> Request {
        Request { version: VERSION, id, identity: None, command }
    }

    /// The same, about the resource of this identity only.
    #[must_use]
    pub fn about(self, identity: Option<u64>) -> Request {
        let identity = identity.filter(|_| self.command.acts_on().is_some());
        Request { identity, ..self }
    }

    /// The request that `line` holds, with or without its end.
    ///
    /// # Errors
    /// The reply to send instead: `MALFORMED_REQUEST` or `OTHER_VERSION`, with the request's id if
    /// that could be read.
    pub fn decode(line: &[u8]) -> Result<Request, Box<Reply>> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            version: u16,
            #[serde(default)]
            id: u64,
        }
        let head: Head = serde_json::from_slice(line).unwrap_or(Head { version: VERSION, id: 0 });
        if head.version != VERSION {
            let message = alloc::format!("version {} was spoken, not {VERSION}", head.version);
            return Err(Box::new(Reply::error(head.id, &codes::OTHER_VERSION, message)));
        }
        decode_line(line).map_err(|error| {
            Box::new(Reply::error(head.id, &codes::MALFORMED_REQUEST, error.to_string()))
        })
    }
}

impl Reply {
    /// It went as asked.
    #[must_use]
    pub fn result(id: u64, answer: Answer) -> Reply {
        Reply { version: VERSION, id, outcome: Outcome::Result(Box::new(answer)) }
    }

    /// It did not.
    #[must_use]
    pub fn error(id: u64, code: &Code, message: impl Into<String>) -> Reply {
        Reply { version: VERSION, id, outcome: Outcome::Error(Failure::new(code, message)) }
    }
}

/// Why a line is not one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LineError {
    /// It is longer than `LINE_BYTES_MAX`: close the connection, or say less.
    TooLong,
    /// It is not the JSON that was expected; says where and why.
    Malformed(String),
}

impl core::fmt::Display for LineError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LineError::TooLong => write!(f, "a line of more than {LINE_BYTES_MAX} bytes"),
            LineError::Malformed(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for LineError {}

/// Appends `value` as one line to `out`.
///
/// # Errors
/// `TooLong`; then `out` is as before.
pub fn encode_line<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), LineError> {
    let line =
        serde_json::to_vec(value).map_err(|error| LineError::Malformed(error.to_string()))?;
    if line.len() >= LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    out.extend_from_slice(&line);
    out.push(b'\n');
    Ok(())
}

/// The value that `line` holds, with or without its end.
///
/// # Errors
/// `TooLong` or `Malformed`.
pub fn decode_line<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    if line.len() > LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    serde_json::from_slice(line).map_err(|error| LineError::Malformed(error.to_string()))
}

/// Cuts a stream of bytes into lines.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// No line ends before this place.
    searched: usize,
}

impl Lines {
    /// Takes what was received.
    ///
    /// # Errors
    /// `TooLong` if the lines not yet taken by `next_line` would exceed `LINE_BYTES_MAX`: take all of
    /// them before each `push`.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), LineError> {
        if self.bytes.len() + bytes.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole line, without its end.
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        let found = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(end) = found.map(|at| self.searched + at) else {
            self.searched = self.bytes.len();
            return None;
        };
        self.searched = 0;
        let rest = self.bytes.split_off(end + 1);
        let mut line = core::mem::replace(&mut self.bytes, rest);
        line.truncate(end);
        Some(line)
    }
}
