//! Tests edits of `mcpServers` in files of every YAML style.

use serde_json::json;

use super::{paste::parse_servers, *};

fn settings(text: &str) -> Settings {
    parse_servers(text, Some("x")).unwrap().remove(0).settings
}

fn add(name: &str, text: &str) -> ServerChange {
    ServerChange::Add { name: name.to_owned(), settings: settings(text) }
}

fn replace(name: &str, text: &str) -> ServerChange {
    ServerChange::Replace { name: name.to_owned(), settings: settings(text) }
}

fn remove(name: &str) -> ServerChange {
    ServerChange::Remove { name: name.to_owned() }
}

#[track_caller]
fn edited(text: &str, change: ServerChange) -> String {
    apply_changes(text, &[change]).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const FILE: &str = "\
# The gateway of the team.
listen: 127.0.0.1:8080   # not public

mcpServers:   # what agents may use
  # Documents
  files:
    command: npx            # from npm
    args:
      - -y
      - '@modelcontextprotocol/server-filesystem' # pinned below
      - \"/srv/docs\"
    # It is slow.
    timeout: 90s

  'search':
    url: https://mcp.example.com/mcp
  # web:
  #   url: https://web.example.com

policy:
  default: review_writes # writes wait
";

#[test]
fn address_with_a_user_is_refused_even_if_disabled() {
    for text in [
        r#"{"url": "https://u:p@h.example/mcp?key=k", "disabled": true}"#,
        r#"{"url": "https://token@h.example/mcp"}"#,
        r#"{"url": "https://u:p@${HOST}/mcp"}"#,
        r#"{"url": "https://h.example", "replicas": ["https://u:p@i.example"]}"#,
    ] {
        let refused = Err(EditError::UserInAddress("x".to_owned()));
        assert_eq!(add("x", text).check_addresses(), refused, "{text}");
        assert_eq!(replace("x", text).check_addresses(), refused, "{text}");
    }
    for text in [r#"{"url": "https://${HOST}/@a?b=c@d"}"#, r#"{"command": "x", "args": ["https://u:p@h"]}"#] {
        assert_eq!(add("x", text).check_addresses(), Ok(()), "{text}");
    }
}

#[test]
fn value_is_set_in_an_empty_section() {
    for text in ["mcpServers: {x: {command: c, env: }}", "mcpServers: {x: {command: c}}"] {
        let mut settings = settings(text);
        set_in_section(&mut settings, "env", "LEVEL", "warn");
        assert_eq!(to_yaml("x", &settings), "mcpServers:\n  x:\n    command: c\n    env:\n      LEVEL: warn\n");
    }
}

#[test]
fn added_server_leaves_every_other_line_alone() {
    let after = edited(FILE, add("git", r#"{"command": "uvx", "args": ["mcp-server-git"]}"#));
    let added = "  git:\n    command: uvx\n    args: [mcp-server-git]\n";
    let expected = FILE.replace("  # web:", &format!("{added}  # web:"));
    assert_eq!(after, expected);
    assert_eq!(edited(&after, remove("git")), FILE);
}

#[test]
fn changed_key_leaves_other_keys_of_the_server_alone() {
    let new = r#"{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/srv/other"],
        "timeout": "90s", "env": {"A": "${B}"}}"#;
    let after = edited(FILE, replace("files", new));
    let args = "    args: [\"-y\", \"@modelcontextprotocol/server-filesystem\", /srv/other]\n";
    let old = FILE.split("    args:\n").nth(1).unwrap().split("    # It is slow.").next().unwrap();
    let expected = FILE.replace(&format!("    args:\n{old}"), args);
    let expected = expected.replace("    timeout: 90s\n", "    timeout: 90s\n    env:\n      A: \"${B}\"\n");
    assert_eq!(after, expected);
    // A key that is gone takes its lines with it.
    let after = edited(FILE, replace("files", r#"{"command": "npx"}"#));
    assert!(after.contains("    command: npx            # from npm\n") && !after.contains("args"), "{after}");
}

#[test]
fn removed_server_leaves_comments_around_it() {
    let after = edited(FILE, remove("search"));
    assert_eq!(after, FILE.replace("  'search':\n    url: https://mcp.example.com/mcp\n", ""));
    let after = edited(&after, remove("files"));
    assert!(after.contains("mcpServers: {}   # what agents may use\n  # Documents\n\n  # web:"), "{after}");
    let again = edited(&after, add("a", r#"{"command": "x"}"#));
    assert!(again.contains("mcpServers:   # what agents may use\n  a:\n    command: x\n  # Documents"), "{again}");
}

#[test]
fn every_form_of_an_empty_section_is_filled() {
    let server = "mcpServers:\n  a:\n    command: x\n";
    for (before, expected) in [
        ("", server.to_owned()),
        ("\n", format!("\n{server}")),
        ("# nothing yet", format!("# nothing yet\n\n{server}")),
        ("listen: 8080", format!("listen: 8080\n\n{server}")),
        ("listen: 8080\n", format!("listen: 8080\n\n{server}")),
        ("mcpServers:", server.to_owned()),
        ("mcpServers: {}\n", server.to_owned()),
        ("mcpServers: { }\nlisten: 1\n", format!("{server}listen: 1\n")),
        ("mcpServers: null # none\n", server.replace(":\n  a", ": # none\n  a")),
        ("\"mcpServers\": ~\n", server.replace("mcpServers", "\"mcpServers\"")),
        ("---\nlisten: 1\n", format!("---\nlisten: 1\n\n{server}")),
        ("\u{feff}listen: 1\n", format!("\u{feff}listen: 1\n\n{server}")),
    ] {
        assert_eq!(edited(before, add("a", r#"{"command": "x"}"#)), expected, "{before:?}");
    }
}

#[test]
fn line_breaks_and_indentation_of_the_file_are_used() {
    let dos = "mcpServers:\r\n    b:\r\n        command: y\r\n";
    let after = edited(dos, add("a", r#"{"command": "x", "env": {"K": "v"}}"#));
    assert_eq!(after, format!("{dos}    a:\r\n      command: x\r\n      env:\r\n        K: v\r\n"));
    let after = edited(dos, replace("b", r#"{"command": "z"}"#));
    assert_eq!(after, dos.replace('y', "z"));
    // The last line may lack its break.
    assert_eq!(
        edited("mcpServers:\n  b:\n    command: y", add("a", r#"{"command": "x"}"#)),
        "mcpServers:\n  b:\n    command: y\n  a:\n    command: x\n"
    );
    assert_eq!(
        edited("mcpServers:\n  b:\n    command: y", replace("b", r#"{"command": "y", "cwd": "/x"}"#)),
        "mcpServers:\n  b:\n    command: y\n    cwd: /x\n"
    );
}

#[test]
fn texts_of_every_kind_keep_their_value() {
    let values = [
        "",
        " ",
        "plain",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "'",
        "\"",
        "\\",
        "a\nb",
        "\ta",
        "null",
        "~",
        "true",
        "No",
        "1",
        "1.5",
        "0x1",
        ".inf",
        "2026-01-01",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "{a}",
        "[a]",
        "a, b",
        "? a",
        "|",
        ">",
        "é",
        "日本",
        "😀",
        "<<",
        "=",
        "${A}",
        "-",
        "---",
        "...",
        "a:",
        ":a",
        "\\n",
        "y",
        "n",
        "1e3",
        "1_000",
        "12:30:45",
    ];
    for value in values {
        let server = json!({ "command": value, "args": [value], "env": { "K": value } });
        let server = server.as_object().unwrap();
        let change = ServerChange::Add { name: "a".to_owned(), settings: server.clone() };
        let text = edited(FILE, change);
        let found = find_server(&text, "a").unwrap();
        assert_eq!(found, *server, "{text}");
    }
    for name in ["a b", "a:b", "#", "'", "null", "1", "a\"b", "日本"] {
        let text = edited(FILE, add(name, r#"{"command": "x"}"#));
        assert_eq!(server_names(&text).unwrap().last().unwrap(), name);
        assert_eq!(edited(&text, remove(name)), FILE);
    }
}

#[test]
fn servers_on_one_line_are_replaced_as_a_whole() {
    let file = "mcpServers:\n  a: { command: x, args: [1] } # short\n  b: {command: y}\n";
    assert_eq!(
        edited(file, replace("a", r#"{"command": "z"}"#)),
        "mcpServers:\n  a:\n    command: z\n  b: {command: y}\n"
    );
    assert_eq!(edited(file, remove("b")), "mcpServers:\n  a: { command: x, args: [1] } # short\n");
}

#[test]
fn block_texts_around_the_server_stay() {
    let file = "mcpServers:\n  a:\n    fallback_text: |+\n      one\n\n      # not a comment\n\n  b:\n    command: y\n";
    let after = edited(file, add("c", r#"{"command": "x"}"#));
    assert_eq!(after, format!("{file}  c:\n    command: x\n"));
    assert_eq!(edited(&after, remove("c")), file);
}

#[test]
fn files_that_are_written_otherwise_are_refused() {
    for file in [
        "{\"mcpServers\": {\"b\": {\"command\": \"y\"}}}",
        "mcpServers: { b: { command: y } }\n",
        "mcpServers: {\n  b: { command: y }\n}\n",
        "mcpServers:\n  {\n  b: { command: y }\n  }\n",
        "mcpServers: &all\n  b: { command: y }\n",
        "x: &all { b: { command: y } }\nmcpServers: *all\n",
        "? mcpServers\n: b: { command: y }\n",
        "  mcpServers:\n    b: { command: y }\n",
        "mcpServers:\n  b: { command: y }\r  c: { command: y }\r",
        "mcpServers:\n  b: { command: y }\n...\n# the end\nx",
    ] {
        let error = apply_changes(file, &[add("a", r#"{"command": "x"}"#)]).unwrap_err();
        let EditError::NotEditable { yaml, .. } = &error else {
            assert!(matches!(error, EditError::Syntax { .. }), "{error:?}: {file}");
            continue;
        };
        assert_eq!(yaml, "mcpServers:\n  a:\n    command: x\n", "{file}");
    }
    // A server is not removed while another one uses its anchor.
    let shared = "mcpServers:\n  a: &a\n    command: x\n  b: *a\n";
    assert!(matches!(apply_changes(shared, &[remove("a")]), Err(EditError::NotEditable { .. })));
    assert_eq!(edited(shared, remove("b")), "mcpServers:\n  a: &a\n    command: x\n");
}

#[test]
fn taken_and_unknown_names_are_refused() {
    let change = add("files", r#"{"command": "x"}"#);
    assert_eq!(apply_changes(FILE, &[change]), Err(EditError::NameTaken("files".to_owned())));
    for change in [remove("none"), replace("none", r#"{"command": "x"}"#)] {
        assert_eq!(apply_changes(FILE, &[change]), Err(EditError::NoSuchServer("none".to_owned())));
    }
    assert!(matches!(apply_changes("a: [", &[remove("a")]), Err(EditError::Syntax { .. })));
}

#[test]
fn value_that_nobody_sees_is_refused() {
    for (name, command) in [("a\u{202e}", "x"), ("a", "x\u{1b}[2J"), ("a", "x\r"), ("a", "\u{200b}x"), ("a", "\0")] {
        let settings = Settings::from_iter([("command".to_owned(), command.into())]);
        let change = ServerChange::Add { name: name.to_owned(), settings };
        assert!(matches!(apply_changes(FILE, &[change]), Err(EditError::HiddenCharacter(_))), "{name:?} {command:?}");
    }
}

#[test]
fn value_cannot_break_out_of_its_place() {
    let hostile = "x\"\npolicy: { default: allow } #\n  evil:\n    command: sh";
    let settings = Settings::from_iter([("command".to_owned(), hostile.into())]);
    let text = edited(FILE, ServerChange::Add { name: hostile.to_owned(), settings });
    assert_eq!(server_names(&text).unwrap(), ["files", "search", hostile]);
    assert_eq!(text.lines().filter(|line| line.starts_with("policy:")).count(), 1);
}

#[test]
fn any_text_is_edited_correctly_or_refused() {
    // Pieces of files in every order: the result either has the intended values, which `apply_changes` checks, or is
    // refused.
    let pieces = [
        "mcpServers:",
        "\n",
        "  a:",
        " { command: x }",
        "    command: y",
        "# c",
        "\r\n",
        "b: 1",
        " |",
        "\t",
        "'",
        "- ",
    ];
    let mut state = 1_u64;
    for _ in 0..4000 {
        let mut text = String::new();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
        }
        let names = server_names(&text).unwrap_or_default();
        for change in [add("n", r#"{"command": "x"}"#), replace("a", r#"{"command": "z"}"#), remove("a")] {
            if let Ok(after) = apply_changes(&text, std::slice::from_ref(&change)) {
                let kept: Vec<String> =
                    server_names(&after).unwrap().into_iter().filter(|name| name != change.name()).collect();
                let before: Vec<String> = names.iter().filter(|name| *name != change.name()).cloned().collect();
                assert_eq!(kept, before, "{text:?}");
            }
        }
    }
}
