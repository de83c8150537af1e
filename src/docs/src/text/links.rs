//! Resolves links from one document to another of the same folder.

use percent_encoding::percent_decode_str;

use super::has_markdown_extension;

/// Returns the documents that these targets lead to from the document at `path`, each once, in their order. Targets
/// outside the folder are dropped.
pub(super) fn resolve(path: &str, targets: &[String]) -> Vec<String> {
    let mut links: Vec<String> = Vec::new();
    for target in targets {
        if let Some(linked) = resolve_target(path, target)
            && linked != path
            && !links.contains(&linked)
        {
            links.push(linked);
        }
    }
    links
}

fn resolve_target(path: &str, target: &str) -> Option<String> {
    let target = target.split(['#', '?']).next()?;
    // The target is a URI, an address without a scheme, or a path of the machine.
    if target.is_empty() || target.starts_with('/') || target.contains([':', '\\']) {
        return None;
    }
    let decoded = percent_decode_str(target).decode_utf8().ok()?;
    if decoded.contains(['\0', '\\']) || !has_markdown_extension(&decoded) {
        return None;
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in decoded.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_within_the_folder() {
        let links_to = |target: &str| resolve("problems/a.md", &[target.to_owned()]);
        assert_eq!(links_to("b.md"), ["problems/b.md"]);
        assert_eq!(links_to("./../tools/x%20y.md#part"), ["tools/x y.md"]);
        assert_eq!(links_to("../c.markdown?raw=1"), ["c.markdown"]);
        for none in [
            "../../x.md",
            "/x.md",
            "https://h/x.md",
            "mailto:x.md",
            "a.md",
            "b.txt",
            "#part",
            "",
            "..\\x.md",
            "%00.md",
            "//h/x.md",
            "..",
            "%2e%2e/%2e%2e/x.md",
        ] {
            assert_eq!(links_to(none), Vec::<String>::new(), "{none}");
        }
        let twice = ["b.md".to_owned(), "./b.md".to_owned(), "c.md".to_owned()];
        assert_eq!(resolve("a.md", &twice), ["b.md", "c.md"]);
    }
}
