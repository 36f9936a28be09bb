//! Pictures of the tables, as SVG, drawn by hand: axes, lines, a legend.

use std::fmt::Write as _;

use crate::report::Report;
use crate::tables::{Row, Table};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 210.0;
/// As many as the most lines of a picture: subjects of `record-file` in a full run.
const COLOURS: [&str; 10] = [
    "#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#e0a030", "#555555", "#2bb3b1", "#d6569b",
    "#7a4a21", "#9aa51d",
];

/// A line with its name, through points (x, y).
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Key, title and picture of everything that can be drawn.
pub(crate) fn all(report: &Report) -> Vec<(&'static str, &'static str, String)> {
    let mut pictures = Vec::new();
    let iops = |row: &Row| row.repeats.median(|sample| sample.iops);
    if let Some(table) = report.tables.iter().find(|table| table.key == "depth") {
        let title = "Latency against throughput as the depth grows, 4K random write";
        let one_job = |row: &&Row| row.threads == 1;
        let lines = lines(table, one_job, |row| (iops(row), row.repeats.median(|one| one.mean_us)));
        pictures.push(("depth", title, draw(title, "IOPS", "mean µs", &lines)));
    }
    for (key, table, title) in [
        (
            "jobs-memory",
            "record-memory",
            "IOPS as clients join, 4K random write, depth 64, in memory",
        ),
        (
            "jobs-file",
            "record-file",
            "IOPS as clients join, 4K random write, depth 64, on the disk",
        ),
    ] {
        let found = report.tables.iter().find(|one| one.key == table);
        let is = |row: &&Row| row.workload.name == "4K random write, depth 64";
        let by_jobs = |table| lines(table, is, |row| (f64::from(row.threads), iops(row)));
        let lines = found.map_or(Vec::new(), by_jobs);
        if lines.iter().any(|line| line.points.len() > 1) {
            pictures.push((key, title, draw(title, "clients", "IOPS", &lines)));
        }
    }
    if let Some(table) = report.tables.iter().find(|table| table.key == "threads") {
        let title = "IOPS against threads of a node, 4K random write, 8 clients of depth 8";
        let rows = table.rows.iter().filter(|row| row.workload.depth == 8);
        let bars: Vec<(String, f64)> = rows.map(|row| (row.subject.clone(), iops(row))).collect();
        pictures.push(("threads", title, bars_of(title, "IOPS", &bars)));
    }
    if let Some(failover) = &report.failover {
        let title = "The application's 99th percentile against the rate of a resync beside it";
        let lines: Vec<Line> = failover
            .resyncs
            .iter()
            .filter(|resync| resync.beside_p99_us > 0.0)
            .map(|resync| Line {
                name: resync.kind.clone(),
                points: vec![
                    (0.0, resync.alone_p99_us),
                    (resync.mib_per_second, resync.beside_p99_us),
                ],
            })
            .collect();
        if !lines.is_empty() {
            pictures.push(("resync", title, draw(title, "MiB/s of the resync", "µs", &lines)));
        }
        let title = "The longest wait of a client";
        let bars: Vec<(String, f64)> =
            failover.pauses.iter().map(|pause| (pause.event.clone(), pause.pause_ms)).collect();
        if !bars.is_empty() {
            pictures.push(("pauses", title, bars_of(title, "ms", &bars)));
        }
    }
    pictures
}

/// One line for each subject, through those of its rows that are wanted.
fn lines(
    table: &Table,
    wanted: impl Fn(&&Row) -> bool,
    point: impl Fn(&Row) -> (f64, f64),
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in table.rows.iter().filter(wanted) {
        match lines.iter_mut().find(|line| line.name == row.subject) {
            Some(line) => line.points.push(point(row)),
            None => lines.push(Line { name: row.subject.clone(), points: vec![point(row)] }),
        }
    }
    lines
}

fn frame(title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{title}</text>\n"
    )
}

fn draw(title: &str, across: &str, up: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let right = ceiling(points().map(|point| point.0).fold(1.0, f64::max));
    let top = ceiling(points().map(|point| point.1).fold(1.0, f64::max));
    let x = |value: f64| LEFT + value / right * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP);
    let mut out = frame(title);
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let (at, height) = (x(right * part), y(top * part));
        write!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{height:.1}\" x2=\"{:.1}\" y2=\"{height:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0}</text>\n\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>\n",
            x(right),
            LEFT - 6.0,
            height + 4.0,
            top * part,
            HEIGHT - BOTTOM + 18.0,
            right * part
        )
        .expect("a string takes all");
    }
    write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{across}</text>\n\
         <text x=\"14\" y=\"{:.1}\">{up}</text>\n",
        x(right / 2.0),
        HEIGHT - 10.0,
        TOP - 4.0
    )
    .expect("a string takes all");
    for (line, (number, colour)) in lines.iter().zip((0_u32..).zip(COLOURS.iter().cycle())) {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        write!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>\n",
            points.join(" "),
            WIDTH - RIGHT + 10.0,
            TOP + 16.0 + 18.0 * f64::from(number),
            line.name
        )
        .expect("a string takes all");
    }
    out + "</svg>\n"
}

fn bars_of(title: &str, unit: &str, bars: &[(String, f64)]) -> String {
    let longest = ceiling(bars.iter().map(|bar| bar.1).fold(1.0, f64::max));
    let mut out = frame(title);
    for ((name, value), number) in bars.iter().zip(0_u32..) {
        let y = TOP + 10.0 + 44.0 * f64::from(number);
        let length = value / longest * (WIDTH - LEFT - RIGHT);
        write!(
            out,
            "<text x=\"{LEFT}\" y=\"{:.1}\">{name}</text>\n\
             <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"16\" fill=\"{}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{value:.0} {unit}</text>\n",
            y + 10.0,
            y + 16.0,
            COLOURS[0],
            LEFT + length + 6.0,
            y + 29.0
        )
        .expect("a string takes all");
    }
    out + "</svg>\n"
}

/// The next 1, 2 or 5 with zeroes.
fn ceiling(value: f64) -> f64 {
    let mut power = 1.0;
    while power * 10.0 < value {
        power *= 10.0;
    }
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&top| top >= value)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Line, ceiling, draw};

    #[test]
    fn axes_end_at_round_numbers_above_everything() {
        assert_eq!(
            [0.5, 1.0, 3.0, 49.0, 50.1, 700.0].map(ceiling),
            [1.0, 1.0, 5.0, 50.0, 100.0, 1000.0]
        );
    }

    #[test]
    fn ten_lines_have_ten_colours() {
        let line = |number: u32| Line { name: number.to_string(), points: vec![(0.0, 1.0)] };
        let lines: Vec<Line> = (0..10).map(line).collect();
        let picture = draw("t", "x", "y", &lines);
        let drawn = picture.lines().filter(|line| line.starts_with("<polyline"));
        let colours: BTreeSet<&str> =
            drawn.filter_map(|line| line.split("stroke=\"").nth(1)?.split('"').next()).collect();
        assert_eq!(colours.len(), 10, "{colours:?}");
    }

    #[test]
    fn every_line_is_drawn_inside_the_frame() {
        let line = Line { name: "one".to_owned(), points: vec![(0.0, 0.0), (10.0, 10.0)] };
        let picture = draw("t", "x", "y", &[line]);
        assert!(picture.contains("80.0,370.0 510.0,40.0"), "{picture}");
    }
}
