//! What a node's settings need of the network: its ports, its peers, the size of packets.
//!
//! Not here: whether settings are right (a node's start says that), what peers answer (`status`).

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use toml::Table;
use wire::admin::with_quotes;

use super::Finding;
use crate::problem::{FILE, Problem};
use crate::unix::connect_within;

/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Packets of Ethernet, in bytes.
const MTU_USUAL: u32 = 1500;

/// The settings of the node of a directory.
pub(super) fn settings(directory: &Path) -> Result<Table, Problem> {
    let path = directory.join("node.toml");
    fs::read_to_string(&path)
        .map_err(|error| error.to_string())
        .and_then(|text| {
            with_quotes(&text).parse::<Table>().map_err(|error| error.message().to_owned())
        })
        .map_err(|error| Problem::new(FILE, format!("{}: {error}", path.display())))
}

/// Looks at what the node of a directory needs.
pub(super) fn look(directory: &Path, settings: &Table) -> Vec<Finding> {
    let name = settings.get("name").and_then(|name| name.as_str()).unwrap_or("?");
    let admin = settings.get("admin_socket").and_then(|path| path.as_str()).unwrap_or("admin.sock");
    let runs = connect_within(&directory.join(admin), PATIENCE).is_ok();
    let mut findings = Vec::new();
    for key in ["listen", "nbd", "nvme"] {
        if let Some(address) = settings.get(key).and_then(|value| value.as_str()?.parse().ok()) {
            findings.push(port(&format!("node {name}, {key}"), address, runs));
        }
    }
    let peers = settings.get("peers").and_then(|peers| peers.as_array());
    for peer in peers.into_iter().flatten() {
        let other = peer.get("name").and_then(|name| name.as_str()).unwrap_or("?");
        let addresses = peer.get("addresses").and_then(|list| list.as_array());
        let addresses: Vec<SocketAddr> = addresses
            .into_iter()
            .flatten()
            .filter_map(|text| text.as_str()?.parse().ok())
            .collect();
        if !addresses.is_empty() {
            findings.push(reach(&format!("node {name} to {other}"), &addresses));
        }
    }
    findings
}

/// A port that a node listens at.
fn port(what: &str, address: SocketAddr, runs: bool) -> Finding {
    if runs {
        return match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => Finding::ok(what, format!("{address} answers")),
            Err(error) => Finding::missing(
                what,
                format!("{address}: {error}"),
                "nobody reaches the node there",
                "what the node's log says of it",
            )
            .needed(),
        };
    }
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(what, format!("{address} is free; the node does not run")),
        Err(error) => {
            let remedy = match error.kind() {
                ErrorKind::AddrInUse => "end what listens there (ss -ltnp), or choose another port",
                ErrorKind::AddrNotAvailable => {
                    "give the address to an interface, or choose one that this machine has"
                }
                ErrorKind::PermissionDenied => "a port above 1023, or CAP_NET_BIND_SERVICE",
                _ => "another address",
            };
            Finding::missing(what, format!("{address}: {error}"), "the node does not start", remedy)
                .needed()
        }
    }
}

/// A peer, which need not run, by all its addresses.
fn reach(what: &str, addresses: &[SocketAddr]) -> Finding {
    let (mut answer, mut silent, mut remedy) = (Vec::new(), Vec::new(), "");
    for address in addresses {
        let begun = Instant::now();
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(_) => {
                let millis = begun.elapsed().as_secs_f64() * 1e3;
                answer.push(format!("{address} answers after {millis:.1} ms"));
            }
            Err(error) => {
                silent.push(format!("{address}: {error}"));
                remedy = match error.kind() {
                    ErrorKind::ConnectionRefused if remedy.is_empty() => "start that node",
                    ErrorKind::ConnectionRefused => remedy,
                    _ => "see that the machine is up, and that no firewall between keeps the port",
                };
            }
        }
    }
    if silent.is_empty() {
        return Finding::ok(what, answer.join(", "));
    }
    let found = || silent.iter().chain(&answer).map(String::as_str).collect::<Vec<_>>().join(", ");
    if answer.is_empty() {
        return Finding::missing(what, found(), "that node is away, as this one sees it", remedy);
    }
    Finding::degraded(
        what,
        found(),
        "if the other ways fail too, that node is away, as this one sees it",
        "see that both machines are on that network, that no firewall between keeps the port, and that the node listens there",
    )
}

/// The packets of each interface that is up.
pub(super) fn packets(interfaces: &Path) -> Finding {
    let what = "packets (MTU)";
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    let is_up = |path: &Path| {
        fs::read_to_string(path.join("operstate")).is_ok_and(|state| state.trim() != "down")
    };
    let mut each: Vec<(String, u32)> = fs::read_dir(interfaces)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_up(&entry.path()))
        .filter_map(|entry| {
            Some((
                entry.file_name().to_string_lossy().into_owned(),
                number(&entry.path().join("mtu"))?,
            ))
        })
        .collect();
    each.sort();
    let found: Vec<String> = each.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect();
    let found = if found.is_empty() { "not told".to_owned() } else { found.join(", ") };
    if each.iter().all(|(_, mtu)| *mtu >= MTU_USUAL) {
        return Finding::ok(what, found);
    }
    Finding::degraded(
        what,
        found,
        "more packets, and more CPU time, for the same bytes; a tunnel that says less than it carries is slower still",
        "1500 or more on the interfaces between nodes: 9000 where all of the way can",
    )
}

#[cfg(test)]
mod tests {
    use super::{look, packets, port};
    use crate::doctor::Verdict;
    use std::fs;
    use std::net::TcpListener;
    use std::path::Path;

    #[test]
    fn a_port_is_free_taken_or_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let taken = port("node a, nbd", address, false);
        assert!(taken.verdict == Verdict::Missing && taken.needed, "{taken:?}");
        assert_eq!(port("node a, nbd", address, true).verdict, Verdict::Ok);
        drop(listener);
        assert_eq!(port("node a, nbd", address, false).verdict, Verdict::Ok);
        // An address for documents, which no machine has.
        let foreign = port("node a, nbd", "192.0.2.1:7789".parse().unwrap(), false);
        assert!(
            foreign.verdict == Verdict::Missing && foreign.remedy.contains("interface"),
            "{foreign:?}"
        );
    }

    #[test]
    fn a_peer_of_several_addresses_is_one_finding_that_names_those_that_do_not_answer() {
        let [first, second] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let [one, other] = [&first, &second].map(|one| one.local_addr().unwrap());
        let peer = format!("name = \"b\"\naddresses = [\"{one}\", \"{other}\"]");
        let settings = format!("name = \"a\"\n[[peers]]\n{peer}\n").parse().unwrap();
        let seen = || match look(Path::new("/nowhere"), &settings).as_slice() {
            [finding] if finding.what == "node a to b" => finding.clone(),
            findings => panic!("{findings:?}"),
        };
        assert_eq!(seen().verdict, Verdict::Ok);
        drop(second);
        let half = seen();
        assert_eq!(half.verdict, Verdict::Degraded, "{half:?}");
        assert!(half.found.starts_with(&format!("{other}: ")), "{half:?}");
        assert!(half.found.contains(&format!("{one} answers")), "{half:?}");
        drop(first);
        let away = seen();
        assert!(away.verdict == Verdict::Missing && away.remedy == "start that node", "{away:?}");
        assert!(!away.needed, "that node need not run");
    }

    #[test]
    fn one_interface_with_small_packets_is_told_and_one_that_is_down_does_not_count() {
        let root = std::env::temp_dir().join(format!("lockstep-doctor-mtu-{}", std::process::id()));
        let put = |name: &str, state: &str, mtu: &str| {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("operstate"), state).unwrap();
            fs::write(root.join(name).join("mtu"), mtu).unwrap();
        };
        put("eth0", "up\n", "9000\n");
        put("old0", "down\n", "576\n");
        assert_eq!(packets(&root).found, "eth0 9000");
        put("wg0", "unknown\n", "1420\n");
        let small = packets(&root);
        fs::remove_dir_all(&root).ok();
        assert_eq!(
            (small.verdict, small.found.as_str()),
            (Verdict::Degraded, "eth0 9000, wg0 1420")
        );
    }
}
