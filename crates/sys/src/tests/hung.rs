//! A disk that hangs beside one that does not, on both engines: a file system that is frozen, which needs root and a loop
//! device.

use std::sync::mpsc::channel;

use super::mounted::{Mounted, run};
use super::*;

/// More requests than any engine has threads for by itself.
const HUNG: u64 = 200;

/// A file system that can be frozen; thawed at its end.
struct Freezer {
    mounted: Mounted,
    is_frozen: bool,
}

impl Freezer {
    /// `None`, and why, where none can be had.
    fn new() -> Option<Freezer> {
        Some(Freezer { mounted: Mounted::new(512, false)?, is_frozen: false })
    }

    fn place(&self) -> PathBuf {
        self.mounted.place()
    }

    fn freeze(&mut self) -> Option<()> {
        run("fsfreeze", &["--freeze", self.place().to_str().unwrap()])?;
        self.is_frozen = true;
        Some(())
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.is_frozen) {
            run("fsfreeze", &["--unfreeze", self.place().to_str().unwrap()]);
        }
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
    }
}

fn direct(path: &Path) -> File {
    let access = Access::ReadWrite;
    let options = OpenOptions { access, create_new: true, ..OpenOptions::default() };
    File::open(path, options).unwrap().set_size(4 << 20).unwrap();
    let options = OpenOptions { access, direct: true, ..OpenOptions::default() };
    File::open(path, options).unwrap()
}

fn large(engine: EngineChoice) -> HandsConfig {
    HandsConfig { engine, operations_max: 1024 }
}

fn write(hands: &mut Hands, token: u64, file: &File, offset: u64) {
    let buffer = BufferPool::new(4096).take_zeroed(4096).unwrap();
    hands.write(token, file, offset, Piece::from(buffer), false);
}

#[test]
fn a_disk_that_hangs_holds_up_no_other_one() {
    for choice in [EngineChoice::Uring, EngineChoice::Epoll] {
        let Ok(mut hands) = Hands::with_engine(large(choice), choice) else { continue };
        let Some(mut freezer) = Freezer::new() else { return };
        let scratch = Scratch::new();
        let (hung, well) = (direct(&freezer.place().join("file")), direct(&scratch.0.join("file")));
        if freezer.freeze().is_none() {
            return;
        }
        for token in 0..HUNG {
            write(&mut hands, token, &hung, token * 4096);
        }
        for round in 0..8 {
            write(&mut hands, 1000, &well, round * 4096);
            let event = one(&mut hands);
            assert_eq!((event.token, event.result), (1000, Ok(4096)), "{choice:?}");
            hands.sync(1001, &well);
            let event = one(&mut hands);
            assert_eq!((event.token, event.result), (1001, Ok(0)), "{choice:?}");
        }
        freezer.thaw();
        for event in gather(&mut hands, usize::try_from(HUNG).unwrap()) {
            assert_eq!(event.result, Ok(4096));
        }
    }
}

#[test]
fn hands_with_a_disk_that_hangs_can_be_let_go() {
    for choice in [EngineChoice::Uring, EngineChoice::Epoll] {
        let Some(mut freezer) = Freezer::new() else { return };
        let hung = direct(&freezer.place().join("file"));
        if freezer.freeze().is_none() {
            return;
        }
        let (ends, ended) = channel();
        let thread = std::thread::spawn(move || {
            let Ok(mut hands) = Hands::with_engine(large(choice), choice) else { return };
            for token in 0..HUNG {
                write(&mut hands, token, &hung, token * 4096);
            }
            hands.wait(Some(Duration(0)), &mut Vec::new()).unwrap();
            drop(hands);
            ends.send(()).unwrap();
        });
        let ended = ended.recv_timeout(std::time::Duration::from_nanos(PATIENCE.0));
        freezer.thaw();
        thread.join().unwrap();
        assert_eq!(ended, Ok(()), "{choice:?}");
    }
}
