//! Tests of the commands that edit servers in the configuration file, try them and import them.

use std::{fs, path::PathBuf};

use support::{
    binary,
    cli::{Home, Lines, object_in},
    eventually,
};

const FILE: &str =
    "# Mine.\nlisten: 127.0.0.1:0 # any port\nmcpServers:\n  # The documents.\n  files:\n    command: 'npx' # slow\n";

/// Creates a home with this configuration file at its default place.
fn home_with(text: &str) -> (Home, PathBuf) {
    let home = Home::new();
    fs::create_dir_all(home.path().join(".config/countersign")).unwrap();
    let file = home.write(".config/countersign/countersign.yaml", text);
    (home, file)
}

#[test]
fn server_is_added_changed_and_removed_in_the_file() {
    let (home, file) = home_with(FILE);
    let read = || fs::read_to_string(&file).unwrap();
    home.run(&["servers", "add", "git", "--package", "pypi:mcp-server-git", "--", "--repository", "/srv/r"])
        .ends(0)
        .says(&["+   git:", "+     command: uvx", "Saved.", "countersign.yaml.bak", "git is the git server"]);
    let added = "  git:\n    command: uvx\n    args: [mcp-server-git, \"--repository\", /srv/r]\n";
    assert_eq!(read(), format!("{FILE}{added}"));
    assert_eq!(fs::read_to_string(file.with_extension("yaml.bak")).unwrap(), FILE);
    home.run(&["config", "check"]).ends(0);
    home.run(&["servers", "add", "git", "--", "x"]).ends(1).complains(&["there is a server `git` already"]);

    home.run(&["servers", "edit", "git", "--env", "LOG=debug"]).ends(0).says(&["+       LOG: debug"]);
    assert_eq!(read(), format!("{FILE}{added}    env:\n      LOG: debug\n"));
    // Another package keeps the variables that the arguments do not name.
    home.run(&["servers", "edit", "git", "--package", "npm:git", "--env", "MODE=x"]).ends(0);
    let variables = "    env:\n      LOG: debug\n      MODE: x\n";
    assert_eq!(read(), format!("{FILE}  git:\n    command: npx\n    args: [\"-y\", git]\n{variables}"));
    home.run(&["servers", "edit", "git", "--package", "pypi:mcp-server-git", "--remove-env", "MODE"]).ends(0);
    home.run(&["servers", "edit", "git", "--", "uvx", "mcp-server-git", "--repository", "/srv/r"]).ends(0);
    home.run(&["servers", "edit", "git", "--remove-env", "LOG", "--disable"]).ends(0);
    assert_eq!(read(), format!("{FILE}{added}    disabled: true\n"));
    home.run(&["servers", "edit", "git", "--enable"]).ends(0);
    home.run(&["servers", "edit", "git"]).ends(2).complains(&["nothing to change"]);
    home.run(&["servers", "edit", "none", "--enable"]).ends(3).complains(&["there is no server `none`"]);

    home.run(&["servers", "remove", "git"]).ends(2).complains(&["needs --yes"]);
    home.run(&["servers", "remove", "git", "--yes"]).ends(0);
    assert_eq!(read(), FILE);
}

#[test]
fn first_server_creates_a_private_file() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.run(&["servers", "add", "web", "--url", "https://mcp.example.com/mcp"])
        .ends(0)
        .says(&["there was none before"]);
    let file = home.path().join(".config/countersign/countersign.yaml");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mcpServers:\n  web:\n    url: https://mcp.example.com/mcp\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn secrets_of_a_pasted_block_become_references() {
    let (home, file) = home_with(FILE);
    let block = home.write(
        "block.json",
        r#"{"mcpServers": {"crm": {"command": "crm-server", "args": ["--api-key", "s3cr3t-0ne"], "timeout": 30,
            "env": {"CRM_TOKEN": "s3cr3t-two", "REGION": "eu"}}}}"#,
    );
    let block = block.to_str().unwrap();
    home.run(&["servers", "add", "--from-json", block]).ends(2).complains(&["needs --yes"]);
    let ran = home.run(&["servers", "add", "--from-json", block, "--yes"]).ends(0).says(&[
        "crm is disabled until CRM_API_KEY, CRM_TOKEN are set where the gateway is started",
        "crm: left out, because the gateway does not know it: `timeout`",
    ]);
    let text = fs::read_to_string(&file).unwrap();
    assert!(!ran.stdout().contains("s3cr3t") && !text.contains("s3cr3t"), "{text}");
    assert!(text.contains("CRM_TOKEN: \"${CRM_TOKEN}\"") && text.contains("disabled: true"), "{text}");
    // The file stays valid without the variables, and the server is enabled once they are set.
    home.run(&["config", "check"]).ends(0);
    home.run(&["servers", "edit", "crm", "--enable"]).ends(78).complains(&["CRM_TOKEN is not set"]);
    let vars = [("CRM_TOKEN", "x"), ("CRM_API_KEY", "y")];
    home.run_with(&vars, &["servers", "edit", "crm", "--enable"]).ends(0);
    // An edit does not need the variables that the file refers to already.
    home.run(&["servers", "edit", "crm", "--env", "LOG=debug"]).ends(0);
    assert!(!fs::read_to_string(&file).unwrap().contains("disabled"));
    // A variable of the arguments is added to the one server of a text, and not to several ones.
    let one = home.write("one.json", r#"{"one": {"command": "x"}}"#);
    home.run(&["servers", "add", "--from-json", one.to_str().unwrap(), "--yes", "--env", "MODE=x"]).ends(0);
    assert!(fs::read_to_string(&file).unwrap().ends_with("  one:\n    command: x\n    env:\n      MODE: x\n"));
    let two = home.write("two.json", r#"{"two": {"command": "x"}, "three": {"command": "x"}}"#);
    let two = two.to_str().unwrap();
    home.run(&["servers", "add", "--from-json", two, "--yes", "--env", "MODE=x"]).ends(2).complains(&["no --env"]);
}

#[test]
fn file_of_another_form_is_left_alone() {
    let (home, file) = home_with("{\"mcpServers\": {\"files\": {\"command\": \"npx\"}}}\n");
    home.run(&["servers", "add", "web", "--url", "https://mcp.example.com/mcp"])
        .ends(1)
        .complains(&["has to be edited by hand", "mcpServers:\n  web:\n    url: https://mcp.example.com/mcp"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"mcpServers\": {\"files\": {\"command\": \"npx\"}}}\n");
    assert!(!file.with_extension("yaml.bak").exists());
    // Neither is a file whose servers a variable sets.
    let home = Home::new().with_var("COUNTERSIGN_MCPSERVERS", "{a: {command: x}}");
    home.run(&["servers", "add", "b", "--", "y"]).ends(1).complains(&["mcpServers is set by environment variable"]);
}

#[test]
fn invalid_and_hidden_values_are_refused() {
    let (home, file) = home_with(FILE);
    for (arguments, part) in [
        (&["servers", "add", "tracker", "--", "x"][..], "provider of the gateway itself"),
        (&["servers", "add", "a", "--url", "ftp://x/"], "scheme"),
        (&["servers", "add", "a", "--", "x\u{202e}y"], "a character that nobody sees"),
        (&["servers", "add", "a\u{1b}[2J", "--", "x"], "a character that nobody sees"),
    ] {
        let ran = home.run(arguments);
        assert_ne!(ran.code(), 0, "{arguments:?}");
        assert!(ran.stderr().contains(part), "{arguments:?}: {}", ran.stderr());
        assert!(!ran.stderr().contains('\u{1b}') && !ran.stderr().contains('\u{202e}'));
    }
    home.run(&["servers", "add", "a", "--package", "unclear"]).ends(2).complains(&["npm:unclear, pypi:unclear"]);
    home.run(&["servers", "add", "a"]).ends(2).complains(&["say what the server is"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), FILE);
}

#[test]
fn trial_lists_tools_and_changes_nothing() {
    let (home, file) = home_with(FILE);
    let data = home.path().join("other");
    let program = binary();
    let stdio = ["stdio", "--standalone", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let mut arguments = vec!["servers", "test", "inner", "--", program.to_str().unwrap()];
    arguments.extend(stdio);
    home.run(&arguments).ends(0).says(&["inner works: countersign", "list_projects", "says that it only reads"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), FILE);
    assert!(!home.data().exists());
}

#[test]
fn trial_shows_the_last_lines_of_a_failing_server() {
    let (home, _) = home_with(FILE);
    let script = "echo starting >&2; echo \"error: no licence for $WHO\" >&2; exit 3";
    home.run(&["servers", "test", "broken", "--env", "WHO=me", "--", "sh", "-c", script]).ends(1).says(&[
        ": its process exited unexpectedly with status 3",
        "Its last lines on stderr:",
        "  starting",
        "error: no licence for me",
    ]);
    home.run(&["servers", "test", "gone", "--", "/no/such/program"]).ends(1).says(&["gone cannot be reached"]);
    home.run(&["servers", "test", "none"]).ends(3).complains(&["there is no server `none`"]);
}

#[test]
fn servers_of_other_clients_are_imported() {
    let (home, file) = home_with(FILE);
    fs::create_dir_all(home.path().join(".cursor")).unwrap();
    let cursor = r#"{"mcpServers": {"notes": {"url": "https://notes.example/mcp"}, "files": {"command": "other"},
        "gateway": {"command": "/usr/bin/countersign", "args": ["stdio"]}, "git": {"command": "git-server"}}}"#;
    let source = home.write(".cursor/mcp.json", cursor);
    home.run(&["servers", "import"]).ends(2).complains(&["needs --yes"]);
    home.run(&["servers", "import", "--yes"]).ends(2).complains(&["name the servers"]);
    home.run(&["servers", "import", "--yes", "gateway"]).ends(3).complains(&["there are notes, git"]);
    home.run(&["servers", "import", "--yes", "notes", "git"])
        .ends(0)
        .complains(&["files of Cursor is in the file already"]);
    let added = "  notes:\n    url: https://notes.example/mcp\n  git:\n    command: git-server\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{FILE}{added}"));
    assert_eq!(fs::read_to_string(source).unwrap(), cursor);
    home.run(&["servers", "import", "--yes"]).ends(0).complains(&["nothing to import"]);
}

#[test]
fn running_gateway_reads_the_edited_file() {
    let (home, _) = home_with("listen: 127.0.0.1:0\n");
    let key = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0).stdout();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    home.run(&["servers", "add", "broken", "--", "sh", "-c", "exit 3"]).ends(0);
    eventually("the server is known", || {
        let listed = home.run_with(&[("COUNTERSIGN_KEY", key.trim())], &["servers"]).ends(0).stdout();
        listed.contains("broken").then_some(())
    });
    home.run(&["servers", "remove", "broken", "--yes"]).ends(0);
    eventually("the server is gone", || {
        let listed = home.run_with(&[("COUNTERSIGN_KEY", key.trim())], &["servers"]).ends(0).stdout();
        (!listed.contains("broken")).then_some(())
    });
    agent.close();
    agent.finish();
}

#[test]
fn server_with_reserved_characters_in_name_is_shown() {
    let (home, _) = home_with(
        "listen: 127.0.0.1:0\nmcpServers:\n  io.github.user/weather: { command: sh, args: [-c, exit 3] }\n  \
         \"50%+\": { command: sh, args: [-c, exit 3] }\n",
    );
    let key = home.run(&["keys", "create", "--role", "reviewer", "--name", "alice"]).ends(0).stdout();
    let mut agent = Lines::start(&home, &["stdio"]);
    agent.ping("1");
    for (name, segment) in [("io.github.user/weather", "io.github.user%2Fweather"), ("50%+", "50%25%2B")] {
        let body = eventually("the server is known", || {
            let (head, body) = home.ask("GET", &format!("/api/servers/{segment}"), Some(key.trim()), "");
            head.starts_with("HTTP/1.1 200").then_some(body)
        });
        assert_eq!(object_in(&body)["name"], name);
        home.run_with(&[("COUNTERSIGN_KEY", key.trim())], &["servers", "show", name]).ends(0);
    }
    agent.close();
    agent.finish();
}
