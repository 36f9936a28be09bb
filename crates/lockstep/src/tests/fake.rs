//! Nodes that nobody runs, for what real ones do at the wrong moment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use wire::admin::{Answer, Code, Command, Reply, Request, ResourceStatus, Status, encode_line};

use crate::admin::Node;

/// What such a node does.
pub(crate) enum Says {
    That(Answer),
    Refused(&'static Code),
    /// It ends.
    Nothing,
}

pub(crate) struct Fake {
    pub(crate) node: Node,
    asked: Arc<Mutex<Vec<Command>>>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        // It is this test's own.
        std::fs::remove_file(&self.node.socket).ok();
    }
}

impl Fake {
    /// A node of this name. It says that it is there, and `answer` says what else it answers.
    pub(crate) fn new(name: &str, answer: impl Fn(&Command) -> Says + Send + 'static) -> Fake {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("ls-fake-{}-{number}", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // Who asks hangs up as it likes.
                serve(stream.unwrap(), &heard, &answer).ok();
            }
        });
        Fake { node: Node { name: name.to_owned(), socket, identity: None }, asked }
    }

    /// What it was told to do, without questions.
    pub(crate) fn told(&self) -> Vec<Command> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: UnixStream,
    asked: &Mutex<Vec<Command>>,
    answer: &dyn Fn(&Command) -> Says,
) -> std::io::Result<()> {
    for line in BufReader::new(stream.try_clone()?).lines() {
        let request = Request::decode(line?.as_bytes()).unwrap();
        let said = match request.command {
            Command::Ping {} => {
                Says::That(Answer::Pong { program: String::new(), node: String::new() })
            }
            command => {
                let said = answer(&command);
                if !matches!(command, Command::Status { .. } | Command::StatusPage { .. }) {
                    asked.lock().unwrap().push(command);
                }
                said
            }
        };
        let reply = match said {
            Says::That(answer) => Reply::result(request.id, answer),
            Says::Refused(code) => Reply::error(request.id, code, "so it is"),
            Says::Nothing => break,
        };
        let mut bytes = Vec::new();
        encode_line(&reply, &mut bytes).unwrap();
        stream.write_all(&bytes)?;
    }
    Ok(())
}

/// What a node answers that knows this resource.
pub(crate) fn knows(resource: ResourceStatus) -> Says {
    let status = Status {
        version: 1,
        resources: vec![ResourceStatus { id: "7".to_owned(), ..resource }],
        warnings: Vec::new(),
        cluster: String::new(),
        more: false,
    };
    Says::That(Answer::Status(status))
}
