//! Checks the README and the pages of `docs/` against the program: links, commands, configurations, keys, endpoints,
//! names of tests, and crates. `tests/clients/docs.test.mjs` runs their snippets.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use support::Gateway;

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A page with its parts.
struct Page {
    /// The path from the root of the repository.
    name: String,
    text: String,
    blocks: Vec<Block>,
    /// Text in backticks outside of blocks.
    codes: Vec<String>,
    /// The text without blocks and inline code.
    prose: String,
}

struct Block {
    language: String,
    text: String,
}

fn pages() -> Vec<Page> {
    let mut files = vec![PathBuf::from(ROOT).join("README.md"), PathBuf::from(ROOT).join("CHANGELOG.md")];
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    files.iter().map(|file| page(file)).collect()
}

fn page(file: &Path) -> Page {
    let name = file.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned();
    let text = fs::read_to_string(file).unwrap();
    let (mut blocks, mut codes, mut prose) = (Vec::new(), Vec::new(), String::new());
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some(Block { language: language.to_owned(), text: String::new() }),
            (Some(_), block @ Some(_)) => blocks.extend(block.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => prose.extend([line, "\n"]),
        }
    }
    assert!(open.is_none(), "{name}: a block does not end");
    let mut outside = String::new();
    for (at, part) in prose.split('`').enumerate() {
        // Inline code may be broken at the end of a line.
        if at % 2 == 1 { codes.push(part.replace('\n', " ")) } else { outside.push_str(part) }
    }
    Page { name, text, blocks, codes, prose: outside }
}

#[test]
fn readme_is_short() {
    let lines = pages().iter().find(|page| page.name == "README.md").unwrap().text.lines().count();
    assert!(lines <= 250, "README.md has {lines} lines, and may have 250: what is more belongs into docs/");
}

/// Returns the anchors of a page's headings.
fn headings(page: &Page) -> BTreeSet<String> {
    let headings = page.text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_has_a_target() {
    let pages = pages();
    for page in &pages {
        let targets = page.prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        for target in targets.filter(|target| !target.starts_with("https://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(&page.name).parent().unwrap();
            let path = if file.is_empty() { PathBuf::from(&page.name) } else { folder.join(file) };
            let path = path.to_str().unwrap().replace("docs/../", "");
            let there = Path::new(ROOT).join(&path).is_file();
            assert!(there, "{}: the link {target} leads to no file", page.name);
            let found = pages.iter().find(|other| other.name == path);
            assert!(
                heading.is_empty() || found.is_some_and(|other| headings(other).contains(heading)),
                "{}: the link {target} leads to no heading",
                page.name
            );
        }
    }
}

#[test]
fn named_paths_exist() {
    for page in pages() {
        let blocks = page.blocks.iter().filter(|block| block.language == "sh").flat_map(|block| block.text.split(' '));
        let words = page.codes.iter().flat_map(|code| code.split(' ')).chain(blocks.flat_map(str::split_whitespace));
        for word in words {
            let named =
                ["scripts/", "src/", "tests/", "config/", "docs/"].iter().any(|folder| word.starts_with(folder));
            assert!(!named || Path::new(ROOT).join(word).exists(), "{}: there is no {word}", page.name);
        }
    }
}

/// Splits shell text into commands, as far as pages use the syntax: quotes, pipes, substitutions, comments.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if quote == Some(c) {
            quote = None;
        } else if quote.is_some() {
            word.get_or_insert_default().push(c);
        } else if matches!(c, '\'' | '"') {
            quote = Some(c);
            word.get_or_insert_default();
        } else if c == '\\' {
            chars.next();
        } else if c == '#' && word.is_none() {
            while chars.next_if(|c| *c != '\n').is_some() {}
        } else if c.is_whitespace() || "|;&()>".contains(c) {
            all.last_mut().unwrap().extend(word.take());
            if c != ' ' {
                all.push(Vec::new());
            }
        } else {
            word.get_or_insert_default().push(c);
        }
    }
    all.last_mut().unwrap().extend(word);
    all.retain(|command| !command.is_empty());
    all
}

/// Returns the arguments of all calls of the program in shell text.
fn program_arguments(text: &str) -> Vec<Vec<String>> {
    let arguments = |command: Vec<String>| {
        let began = match command[0].as_str() {
            "countersign" => Some(1),
            "cargo" => command.iter().position(|word| word == "--").map(|at| at + 1),
            _ => None,
        };
        began.map(|at| command[at..].to_vec())
    };
    commands(text).into_iter().filter_map(arguments).collect()
}

/// Runs the program without anything to work on; returns its exit code and stderr.
fn run(arguments: &[String], more: &[&str]) -> (Option<i32>, String) {
    let home = tempfile::tempdir().unwrap();
    // The configuration is validated before anything is opened, and this one does not exist.
    let config = home.path().join("none.yaml");
    // The programs that a documented command starts are not found, so that nothing is downloaded.
    let variables = [("COUNTERSIGN_CONFIG", config.to_str().unwrap()), ("PATH", home.path().to_str().unwrap())];
    let mut command = support::command(&variables);
    let output = command.args(arguments).args(more).current_dir(&home).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn documented_commands_are_valid() {
    const USAGE: Option<i32> = Some(2);
    assert_eq!(run(&["rules".into(), "revoke".into()], &[]).0, USAGE, "a command that lacks something is found");
    assert_eq!(run(&["rules".into(), "--revoke".into()], &["--help"]).0, USAGE, "and so is a wrong option");
    let mut checked = 0;
    for page in pages() {
        let blocks = page.blocks.iter().filter(|block| block.language == "sh");
        for arguments in blocks.flat_map(|block| program_arguments(&block.text)) {
            let (code, err) = run(&arguments, &[]);
            assert!(code.is_some_and(|code| code != 2 && code != 70), "{}: {arguments:?}: {err}", page.name);
            checked += 1;
        }
        // In prose, a command may be incomplete.
        for arguments in page.codes.iter().flat_map(|code| program_arguments(code)) {
            let (code, err) = run(&arguments, &["--help"]);
            assert_eq!(code, Some(0), "{}: {arguments:?}: {err}", page.name);
            checked += 1;
        }
        for block in page.blocks.iter().filter(|block| block.language == "json") {
            let servers: Value = serde_json::from_str(&block.text).unwrap();
            let entry = &servers["mcpServers"]["countersign"];
            assert_eq!(entry["command"], "countersign", "{}", page.name);
            let arguments: Vec<String> = serde_json::from_value(entry["args"].clone()).unwrap();
            assert_eq!(run(&arguments, &["--help"]).0, Some(0), "{}: {arguments:?}", page.name);
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn documented_yaml_is_valid_configuration() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("countersign.yaml");
    // Files and folders that a configuration names must be usable.
    support::tls::create_certificate(home.path());
    let token_key = home.path().join("key");
    fs::write(&token_key, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
    fs::set_permissions(&token_key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(home.path().join("handbook")).unwrap();
    let credentials = ("CREDENTIALS_DIRECTORY", home.path().to_str().unwrap());
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.language == "yaml") {
            let text = block.text.replace("/etc/countersign/key", "key").replace("/srv/handbook", "handbook");
            fs::write(&file, text).unwrap();
            let variables = block.text.split("${").skip(1).map(|rest| rest.split('}').next().unwrap());
            let (files, variables): (Vec<_>, Vec<_>) = variables.partition(|name| name.starts_with("credential:"));
            for name in files {
                let content = if name.ends_with("_key") { "-----BEGIN PRIVATE KEY-----" } else { "x" };
                fs::write(home.path().join(name.trim_start_matches("credential:")), content).unwrap();
            }
            let filled = variables.into_iter().map(|name| {
                let url = name.ends_with("_URL");
                (name, if url { "https://chat.example/x" } else { "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" })
            });
            let mut command = support::command(&filled.chain([credentials]).collect::<Vec<_>>());
            let output = command.args(["config", "check", "--config"]).arg(&file).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(0), "{}:\n{}\n{err}", page.name, block.text);
        }
    }
}

/// Returns all keys of the default file, including its commented examples, with `<name>` for names of servers and
/// webhooks.
fn keys() -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(ROOT).join("config/countersign.yaml")).unwrap();
    let mut keys = BTreeSet::new();
    let mut open: Vec<(usize, String)> = Vec::new();
    for line in text.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        let indent = line.len() - line.trim_start().len();
        let Some((key, _)) = line.trim_start().split_once(':') else { continue };
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) {
            continue;
        }
        open.retain(|(above, _)| *above < indent);
        let named = open.len() == 1 && matches!(open[0].1.as_str(), "mcpServers" | "webhooks");
        open.push((indent, if named { "<name>".to_owned() } else { key.to_owned() }));
        keys.insert(open.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join("."));
    }
    keys
}

#[test]
fn documented_keys_are_in_the_default_file() {
    let keys = keys();
    let first: BTreeSet<&str> = keys.iter().map(|key| key.split('.').next().unwrap()).collect();
    assert!(keys.contains("limits.max_uri") && keys.contains("mcpServers.<name>.previews"), "{keys:?}");
    let mut checked = 0;
    for page in pages() {
        for code in &page.codes {
            // With or without a value.
            let key = code.split(':').next().unwrap();
            let is_key = key.contains('.') && key.chars().all(|c| c.is_ascii_alphanumeric() || "._<>".contains(c));
            if is_key && first.contains(key.split('.').next().unwrap()) {
                assert!(keys.contains(key), "{}: there is no key {key}", page.name);
                checked += 1;
            }
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn documented_endpoints_match_openapi() {
    let gateway = Gateway::start();
    let (status, api) = gateway.api("GET", "/api/openapi.json", None);
    assert_eq!(status, 200);
    let mut named = BTreeSet::new();
    for page in pages() {
        for code in &page.codes {
            let Some((method, path)) = code.split_once(' ') else { continue };
            let is_ours = ["/api", "/events", "/.well-known/oauth-client"].iter().any(|start| path.starts_with(start));
            if matches!(method, "GET" | "POST" | "PUT" | "DELETE") && is_ours {
                let endpoint = &api["paths"][path][method.to_lowercase()];
                assert!(endpoint.is_object(), "{}: there is no {code}", page.name);
                if page.name == "docs/rest.md" {
                    named.insert(path.to_owned());
                }
            }
        }
    }
    let missing: Vec<_> = api["paths"].as_object().unwrap().keys().filter(|path| !named.contains(*path)).collect();
    assert!(missing.is_empty(), "docs/rest.md does not name {missing:?}");
}

/// Calls `each` with every file of the repository's own below a folder.
pub fn for_each_file(folder: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !path.is_dir() {
            each(&path);
        } else if !name.starts_with('.') && name != "node_modules" && name != "target" {
            for_each_file(&path, each);
        }
    }
}

/// Collects the text of all tests, in Rust and in JavaScript.
fn sources(folder: &Path, rust: &mut String, js: &mut String) {
    for_each_file(folder, &mut |path| match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => rust.push_str(&fs::read_to_string(path).unwrap()),
        Some("mjs") => js.push_str(&fs::read_to_string(path).unwrap()),
        _ => {}
    });
}

/// Returns `true` if the text can only be the name of a test.
fn is_long_name(code: &str) -> bool {
    code.split('_').count() >= 5 && code.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'))
}

#[test]
fn named_tests_exist() {
    let (mut rust, mut js) = (String::new(), String::new());
    for folder in ["src", "tests"] {
        sources(&Path::new(ROOT).join(folder), &mut rust, &mut js);
    }
    // A test in Rust is a function, or a module with a test for each row.
    let exists = |name: &str| match name.contains(' ') {
        true => js.contains(&format!("test('{name}'")),
        false => rust.contains(&format!("fn {name}(")) || rust.contains(&format!("mod {name} {{")),
    };
    let mut promises = 0;
    for page in pages() {
        // One page lists the tools of other servers.
        let has_tests = page.name != "docs/servers-tried.md";
        for name in page.codes.iter().filter(|code| has_tests && is_long_name(code)) {
            assert!(exists(name), "{}: there is no test {name}", page.name);
        }
        let (part, head) = match page.name.as_str() {
            "docs/SECURITY.md" => ("## What is promised", "| promise |"),
            "docs/architecture.md" => ("## Invariants", "| invariant |"),
            _ => continue,
        };
        let rows = page.text.lines().skip_while(|line| !line.starts_with(part)).skip(1);
        let rows = rows.take_while(|line| !line.starts_with("## "));
        for row in rows.filter(|row| row.starts_with("| ") && !row.starts_with(head)) {
            let tests: Vec<&str> = row.rsplit('|').nth(1).unwrap().split('`').skip(1).step_by(2).collect();
            assert!(!tests.is_empty(), "no test holds: {row}");
            for name in tests {
                assert!(exists(name), "there is no test {name}");
            }
            promises += 1;
        }
    }
    assert!(promises > 35, "{promises}");
}

/// Checks that files and tests named in the recipes of CONTRIBUTING and of file headers exist.
#[test]
fn names_in_recipes_exist() {
    let (mut rust, mut js) = (String::new(), String::new());
    for folder in ["src", "tests"] {
        sources(&Path::new(ROOT).join(folder), &mut rust, &mut js);
    }
    let contributing = fs::read_to_string(Path::new(ROOT).join("docs/CONTRIBUTING.md")).unwrap();
    let begin = contributing
        .lines()
        .filter(|line| line.starts_with("| a ") || line.starts_with("| an "))
        .map(|line| line.split('`').nth(1).unwrap());
    let mut recipes = 0;
    for file in begin {
        let text = fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
        let comments = text.lines().map(|line| line.strip_prefix("//").map(|line| line.trim_start_matches(['/', '!'])));
        let recipe = comments.skip_while(|line| !line.is_some_and(|line| line.starts_with(" To add ")));
        let recipe: Vec<&str> = recipe.map_while(|line| line.filter(|line| !line.is_empty())).collect();
        let recipe = recipe.join("\n");
        let mut tests = 0;
        for code in recipe.split('`').skip(1).step_by(2) {
            if is_long_name(code) {
                assert!(rust.contains(&format!("fn {code}(")), "{file}: there is no test {code}");
                tests += 1;
            }
            let beside = Path::new(ROOT).join(file).with_file_name(code);
            let is_file =
                code.ends_with(".rs") || code.contains(".mjs") || code.contains(".yaml") || code.contains('/');
            assert!(!is_file || Path::new(ROOT).join(code).exists() || beside.exists(), "{file}: there is no {code}");
        }
        assert!(tests > 0, "{file}: no test finds a step that was left out");
        recipes += 1;
    }
    assert_eq!(recipes, 11);
}

/// Returns the folders of the crates below `src`, from the lowest layer up, in the order of the workspace.
fn crates() -> Vec<String> {
    let workspace = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let ours = workspace.lines().filter(|line| line.starts_with("countersign"));
    ours.filter_map(|line| line.split_once("path = \"src/")?.1.split('"').next().map(str::to_owned)).collect()
}

#[test]
fn crates_follow_the_order_of_the_architecture_page() {
    let crates = crates();
    let pages = pages();
    let page = pages.iter().find(|page| page.name == "docs/architecture.md").unwrap();
    let part = page.text.lines().skip_while(|line| !line.starts_with("## The crates")).skip(1);
    let part = part.take_while(|line| !line.starts_with("## "));
    let rows: Vec<Vec<&str>> = part
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let named: Vec<&str> = rows.iter().map(|cells| cells[0].trim_matches('`')).collect();
    assert_eq!(named, crates, "the order is that of the workspace");
    for (at, (name, cells)) in named.iter().zip(&rows).enumerate() {
        let lower: BTreeSet<&str> = named[..at].iter().copied().collect();
        let may: BTreeSet<&str> = match cells[1].strip_prefix("all") {
            Some(rest) => {
                let but: Vec<&str> = rest.trim_start_matches(" but ").split(", ").collect();
                lower.iter().copied().filter(|name| !but.contains(name)).collect()
            }
            None => cells[1].split(", ").filter(|name| *name != "nothing").collect(),
        };
        let manifest = fs::read_to_string(Path::new(ROOT).join("src").join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("\n[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let ours = dependencies.lines().filter_map(|line| line.strip_prefix("countersign-"));
        let uses: BTreeSet<&str> = ours.filter_map(|rest| rest.split(['.', ' ']).next()).collect();
        assert_eq!(uses, may, "what {name} may use");
        assert!(uses.is_subset(&lower), "{name} uses a crate of its own layer or a higher one");
    }
}

/// Returns the packages that `cargo test` of the selection builds, with their features.
fn built_packages(chosen: &[String]) -> BTreeSet<String> {
    let tree = ["tree", "--locked", "--offline", "--edges", "features", "--prefix", "none", "--format", "{p}|{f}"];
    let output = Command::new(env!("CARGO")).args(tree).args(chosen).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let packages = text.lines().filter(|line| line.contains('|')).map(|line| line.trim_end_matches(" (*)").to_owned());
    packages.collect()
}

/// Otherwise the first `cargo test -p` of a crate would rebuild most packages with other features.
#[test]
fn single_crate_tests_reuse_the_workspace_build() {
    let all = built_packages(&["--workspace".to_owned()]);
    assert!(all.len() > 300, "{}", all.len());
    for name in crates() {
        let own = format!("countersign-{name} ");
        let other: Vec<String> = built_packages(&["--package".to_owned(), own.trim().to_owned()])
            .into_iter()
            .filter(|package| !all.contains(package) && !package.starts_with(&own))
            .collect();
        assert!(other.is_empty(), "with {name} alone: {other:#?}\nSee tests/features/Cargo.toml.");
    }
}

#[test]
fn each_crate_has_a_short_header() {
    for name in crates() {
        let text = fs::read_to_string(Path::new(ROOT).join("src").join(&name).join("src/lib.rs")).unwrap();
        let header = text.lines().take_while(|line| line.starts_with("//!")).count();
        assert!((3..=10).contains(&header), "{name}: {header} lines");
    }
}

#[test]
fn no_file_of_rust_exceeds_500_lines() {
    for folder in ["src", "tests"] {
        for_each_file(&Path::new(ROOT).join(folder), &mut |file| {
            if file.extension().is_some_and(|extension| extension == "rs") {
                let lines = fs::read_to_string(file).unwrap().lines().count();
                assert!(lines <= 500, "{}: {lines} lines", file.display());
            }
        });
    }
}

#[test]
fn deliberately_absent_features_are_absent() {
    let mut rust = String::new();
    sources(&Path::new(ROOT).join("src"), &mut rust, &mut String::new());
    for name in ["ResponseActFuture", "ctx.spawn", "AtomicResponse", "Supervisor"] {
        assert!(!rust.contains(name), "{name} is used");
    }
    let pumps = rust.matches("type Context = WebsocketContext").count();
    assert_eq!(pumps, 1, "no other actor may run inside a response body");
}
