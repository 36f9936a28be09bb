//! Links between documents lead somewhere.

use super::Finding;
use super::files::Source;

/// Every relative link of a Markdown file names something `exists` knows, by path from the root.
pub(super) fn resolve(source: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    if !source.path.ends_with(".md") {
        return Vec::new();
    }
    let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            if !join(folder, &target).is_some_and(|path| exists(&path)) {
                findings.push(Finding {
                    file: source.path.clone(),
                    line: number + 1,
                    rule: "link",
                    problem: format!("the link {target} leads nowhere"),
                    remedy: "correct it or write the document".into(),
                });
            }
        }
    }
    findings
}

/// Where the inline links of a line lead within the tree, without anchors.
fn targets(line: &str) -> Vec<String> {
    // What stands between backticks is code.
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .filter_map(|target| target.split('#').next())
        .filter(|target| !target.is_empty())
        .map(str::to_owned)
        .collect()
}

/// `target` as seen from `folder`, as a path from the root; `None` if it leaves the tree.
fn join(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
