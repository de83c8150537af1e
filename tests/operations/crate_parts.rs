//! Checks that the parts of a crate, the files and folders directly in its `src`, depend on one another in one
//! direction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src");

/// A crate's parts, each with the parts that its code uses, without tests, which may use anything.
type Parts = BTreeMap<String, BTreeSet<String>>;

/// Returns the text without comments and without the unit tests at its end.
fn code(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

/// Parses the `use` tree or path at the beginning of `text`; returns its paths and its length.
fn paths(text: &str) -> (Vec<Vec<String>>, usize) {
    let rest = text.trim_start();
    let mut at = text.len() - rest.len();
    if let Some(inside) = rest.strip_prefix('{') {
        at += 1;
        let (mut all, mut inside) = (Vec::new(), inside);
        loop {
            let space = inside.len() - inside.trim_start().len();
            (inside, at) = (&inside[space..], at + space);
            match inside.as_bytes().first() {
                Some(b'}') | None => return (all, at + 1),
                Some(b',') => (inside, at) = (&inside[1..], at + 1),
                _ => {
                    let (some, length) = paths(inside);
                    // An alias `… as name`, and text that is not a path.
                    let length = length + inside[length..].find([',', '}', '{']).unwrap_or(inside.len() - length);
                    all.extend(some);
                    (inside, at) = (&inside[length..], at + length);
                }
            }
        }
    }
    let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, after) = rest.split_at(length);
    at += length;
    let mut all = vec![vec![name.to_owned()]];
    if let Some(after) = after.strip_prefix("::") {
        let (below, length) = paths(after);
        at += 2 + length;
        all = below.into_iter().map(|path| [vec![name.to_owned()], path].concat()).collect();
    }
    (all, at)
}

/// Returns every path that begins with `crate` or `super`, resolved from the crate's root for a module at this path.
fn from_root(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].trim_end_matches('$');
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            for path in paths(&text[at..]).0 {
                let ups = path.iter().take_while(|name| *name == "super").count();
                let base = if start == "crate::" { &[] } else { &module[..module.len().saturating_sub(ups)] };
                let names = path.into_iter().skip(if start == "crate::" { 1 } else { ups });
                all.push(base.iter().cloned().chain(names).collect());
            }
        }
    }
    all
}

/// Returns the names under which the crate's root re-exports its parts.
fn exports(root: &str, parts: &Parts) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (at, _) in root.match_indices("use ") {
        for path in paths(root[at + 4..].trim_start_matches("self::")).0 {
            if let [part, .., name] = path.as_slice()
                && parts.contains_key(part)
            {
                all.insert(name.clone(), part.clone());
            }
        }
    }
    all
}

fn modules(folder: &Path, module: &[String], each: &mut dyn FnMut(&[String], String)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" || name == "testing" || name.ends_with("_tests") {
            continue;
        }
        let inside = [module, std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            modules(&path, &inside, each);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "main" {
            let of = if name == "mod" || name == "lib" { module } else { &inside };
            each(of, code(&fs::read_to_string(&path).unwrap()));
        }
    }
}

fn parts(name: &str) -> Parts {
    let mut texts = Vec::new();
    modules(&Path::new(ROOT).join(name).join("src"), &[], &mut |module, text| texts.push((module.to_vec(), text)));
    let mut parts: Parts =
        texts.iter().filter_map(|(module, _)| Some((module.first()?.clone(), BTreeSet::new()))).collect();
    let root = texts.iter().find(|(module, _)| module.is_empty()).map_or("", |(_, text)| text);
    let exports = exports(root, &parts);
    for (module, text) in texts.iter().filter(|(module, _)| !module.is_empty()) {
        for path in from_root(text, module) {
            let Some(first) = path.first() else { continue };
            let used = if parts.contains_key(first) { Some(first) } else { exports.get(first) };
            if let Some(used) = used.filter(|used| **used != module[0]).cloned() {
                parts.get_mut(&module[0]).unwrap().insert(used);
            }
        }
    }
    parts
}

/// Returns the parts that cannot be ordered from the lowest up, because they are in a cycle or use one.
fn parts_in_cycles(parts: &Parts) -> Vec<&str> {
    let mut order: Vec<&str> = Vec::new();
    loop {
        let free = parts.iter().filter(|(part, uses)| {
            !order.contains(&part.as_str()) && uses.iter().all(|used| order.contains(&used.as_str()))
        });
        let free: Vec<&str> = free.map(|(part, _)| part.as_str()).collect();
        if free.is_empty() {
            return parts.keys().map(String::as_str).filter(|part| !order.contains(part)).collect();
        }
        order.extend(free);
    }
}

fn crates() -> Vec<String> {
    let folders = fs::read_dir(ROOT).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    folders.filter(|name| Path::new(ROOT).join(name).join("Cargo.toml").is_file()).collect()
}

#[test]
fn parts_of_a_crate_have_no_cycles() {
    let mut cycles: Vec<String> = Vec::new();
    for name in crates() {
        let parts = parts(&name);
        let some = parts_in_cycles(&parts);
        if !some.is_empty() {
            let uses = some.iter().map(|part| format!("\n  {part} uses {:?}", parts[*part]));
            cycles.push(format!("{name}, where some of these use each other:{}", uses.collect::<String>()));
        }
    }
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

#[test]
fn upstream_folders_follow_the_order_of_its_header() {
    let header = fs::read_to_string(Path::new(ROOT).join("upstream/src/lib.rs")).unwrap();
    let header = header.split_once("Each part uses only those before it.").unwrap().1;
    let parts = parts("upstream");
    let position = |part: &str| header.find(&format!("`{part}`"));
    let folders = ["credentials", "link", "catalog", "server", "calls", "upkeep"];
    for part in folders {
        let at = position(part).unwrap_or_else(|| panic!("the header does not name {part}"));
        for used in &parts[part] {
            assert!(position(used).is_some_and(|used| used < at), "{part} uses {used}");
        }
    }
    assert!(parts["upkeep"].len() >= 3 && parts["server"].contains("link"), "{parts:?}");
}

#[test]
fn paths_are_parsed_as_written() {
    let text =
        "use crate::{\n  a::{self, B as C},\n  d::E,\n};\nfn f() { super::super::g(crate::h::i::J); super::k::l() }";
    let module = ["m", "n", "o"].map(str::to_owned);
    let read: BTreeSet<String> = from_root(text, &module).iter().map(|path| path.join("::")).collect();
    let expected = ["a::self", "a::B", "d::E", "m::g", "h::i::J", "m::n::k::l"];
    assert_eq!(read, expected.map(str::to_owned).into());
}

#[test]
fn cyclic_parts_are_detected() {
    let uses = |part: &str, used: &[&str]| (part.to_owned(), used.iter().map(|used| (*used).to_owned()).collect());
    let parts: Parts = [uses("a", &[]), uses("b", &["a", "c"]), uses("c", &["b"]), uses("d", &["a"])].into();
    assert_eq!(parts_in_cycles(&parts), ["b", "c"]);
}
