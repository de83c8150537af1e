//! Tests of the deployments in `docs/cluster.md`: the same commands, environments, files and addresses, with processes
//! in separate networks instead of containers and machines.
//!
//! The differences: `/data` and `/etc/countersign` are in `/mnt`, and neither the balancer nor the remote database has
//! a certificate.

mod balancers;
mod hosts;

use std::{net::SocketAddr, path::Path, process::Command};

use serde_json::{Value, json};

use hosts::{Host, Lan, run_in_namespaces, snippet};
use support::{
    Process, binary, eventually,
    http::{Conn, Response},
    mcp::{ACCEPT, JSON, initialize_params, notification, request},
    postgres::Server,
};

const GATEWAYS: [&str; 3] = ["10.0.0.5", "10.0.0.6", "10.0.0.7"];
const DATABASE: &str = "10.0.0.20";
const BALANCER: &str = "10.0.0.30";
const PASSWORD: &str = "chosen-by-us";

/// Starts PostgreSQL on a separate machine, which asks others for their password.
fn database(host: &Host, user: &str, password: &str, name: &str) -> Server {
    let server = Server::start_by(&host.network(), 5432, &["-c", "fsync=off", "-c", "listen_addresses=*"]);
    assert_eq!(user, "countersign", "the role that the server has");
    server.sql("postgres", &format!("ALTER ROLE countersign PASSWORD '{password}'"));
    server.sql("postgres", &format!("CREATE DATABASE {name}"));
    let rules = server.folder().join("data/pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("{before}\nhost all all samenet scram-sha-256\n")).unwrap();
    server.sql("postgres", "SELECT pg_reload_conf()");
    server
}

/// A file of `config/`.
fn shipped_file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../config").join(name)).unwrap()
}

/// Starts nginx with this configuration, without TLS.
fn nginx(host: &Host, site: &str) -> Process {
    let site = site.replace("listen 443 ssl;", "listen 443;");
    let site: Vec<&str> = site.lines().filter(|line| !line.trim().starts_with("ssl_")).collect();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|of| format!("{of}_temp_path /mnt/{of};"));
    let config = format!(
        "daemon off; master_process off; pid /mnt/pid; error_log stderr error;\nevents {{}}\n\
         http {{ access_log off; {}\n{}\n}}\n",
        temporary.join(" "),
        site.join("\n")
    );
    std::fs::write(host.mnt().join("nginx.conf"), config).unwrap();
    host.spawn(&["nginx", "-c", "/mnt/nginx.conf", "-p", "/mnt"], &[])
}

fn key(host: &Host, words: &[&str], env: &[(String, String)]) -> String {
    let output = host.command(words, env).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Sends a request through the balancer from outside, by its public name.
fn ask(method: &str, path: &str, key: &str, more: &[(&str, &str)], body: &Value) -> Option<Response> {
    let mut conn = Conn::try_open(SocketAddr::new(BALANCER.parse().unwrap(), 443)).ok()?;
    let bearer = format!("Bearer {key}");
    let mut headers = vec![("Host", "gateway.example.com"), ("Authorization", bearer.as_str()), JSON];
    headers.extend_from_slice(more);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    conn.request(method, path, &headers, body.as_bytes());
    conn.try_response()
}

/// Runs an agent in one session and a reviewer, neither of whom knows that there are three gateways.
fn one_change_through_the_balancer(agent: &str, reviewer: &str) {
    let none = Value::Null;
    let get = |path: &str| ask("GET", path, reviewer, &[], &none);
    eventually("all gateways serve, and know of each other", || {
        let listed = get("/api/nodes").filter(|response| response.status == 200)?.json();
        let live = listed["nodes"].as_array()?.iter().filter(|node| node["live"] == true);
        (live.filter(|node| node["sameConfiguration"] == true).count() == GATEWAYS.len()).then_some(())
    });
    let opened =
        ask("POST", "/mcp", agent, &[ACCEPT], &request(0, "initialize", initialize_params("2025-11-25"))).unwrap();
    assert_eq!(opened.status, 200, "{}", opened.text());
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let post = |body: &Value| {
        let headers = [ACCEPT, ("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
        ask("POST", "/mcp", agent, &headers, body).unwrap()
    };
    assert_eq!(post(&notification("notifications/initialized")).status, 202);
    // More requests than gateways, so most of them are forwarded.
    for n in 1..=9 {
        let listed = post(&request(n, "tools/list", json!({})));
        assert_eq!(listed.status, 200, "{}", listed.text());
        assert!(listed.text().contains("create_issue"), "{}", listed.text());
    }
    let call = |name: &str, arguments: Value| {
        let answer = post(&request(10, "tools/call", json!({"name": name, "arguments": arguments}))).json();
        assert!(answer["result"]["structuredContent"].is_object(), "{answer}");
        answer["result"]["structuredContent"].clone()
    };
    let project = call("list_projects", json!({}))["projects"][0]["id"].clone();
    let issue = json!({"projectId": project, "title": "Through the balancer", "type": "Story"});
    let proposed = call("create_issue", issue);
    let path = format!("/api/changes/{}", proposed["changeId"].as_str().unwrap());
    let change = get(&path).unwrap().json();
    assert_eq!(change["state"], "pending", "{change}");
    let decision = json!({
        "decision": "approve", "comment": "yes", "version": change["version"], "digest": change["digest"],
    });
    let decided = ask("POST", &format!("{path}/decision"), reviewer, &[], &decision).unwrap();
    assert_eq!(decided.status, 200, "{}", decided.text());
    eventually("it is applied", || (get(&path)?.json()["state"] == "applied").then_some(()));
    let listed = call("list_issues", json!({"projectId": project}));
    assert!(listed.to_string().contains("Through the balancer"), "{listed}");
}

#[test]
fn compose_file_of_the_page_works() {
    run_in_namespaces("deployment::compose_file_of_the_page_works", || {
        // As compose does: `$$` is a dollar, and text in braces is a variable.
        let text = snippet("yml", "services:").replace("${DB_PASSWORD}", PASSWORD).replace("$$", "$");
        let compose: Value = serde_saphyr::from_str(&text).unwrap();
        let services = &compose["services"];
        let mut names = vec![(DATABASE, "db")];
        names.extend(GATEWAYS.map(|address| (address, "gateway")));
        let lan = Lan::new(&names);
        let has = |name: &str| services["db"]["environment"][name].as_str().unwrap();
        let db = lan.host("db", DATABASE);
        let _server = database(&db, has("POSTGRES_USER"), has("POSTGRES_PASSWORD"), has("POSTGRES_DB"));

        let service = &services["gateway"];
        let set = service["environment"].as_object().unwrap();
        let env: Vec<_> = set.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
        let command = format!("exec {}", service["command"].as_str().unwrap().replace("/data", "/mnt/data"));
        assert!(service["volumes"].as_array().unwrap().contains(&json!("/data")));
        let gateways: Vec<Host> =
            GATEWAYS.iter().enumerate().map(|(n, address)| lan.host(&format!("gateway{n}"), address)).collect();
        let _gateways: Vec<Process> =
            gateways.iter().map(|gateway| gateway.spawn(&["sh", "-c", &command], &env)).collect();
        let create = snippet("sh", "docker compose exec").replace("/data", "/mnt/data");
        let create = create.trim().strip_prefix("docker compose exec gateway ").unwrap();
        eventually("its store is there", || gateways[0].mnt().join("data/gateway.json").exists().then_some(()));
        let reviewer = key(&gateways[0], &create.split(' ').collect::<Vec<_>>(), &env);
        let create = create.replace("reviewer", "agent").replace("alice", "robot");
        let agent = key(&gateways[1], &create.split(' ').collect::<Vec<_>>(), &env);

        assert_eq!(services["balancer"]["ports"], json!(["443:443"]));
        let servers = GATEWAYS.map(|address| format!("    server {address}:8080 max_fails=0;\n")).concat();
        let site = shipped_file("nginx.conf");
        assert!(site.contains(&servers));
        let site = site.replace(&servers, "    server gateway:8080 max_fails=0;\n");
        let _balancer = nginx(&lan.host("balancer", BALANCER), &site);
        one_change_through_the_balancer(&agent, &reviewer);
    });
}

/// Returns the value of a setting of the unit.
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap()
}

/// Three machines with the unit and the environment of the page, and a database on a fourth one.
struct Machines {
    gateways: Vec<Process>,
    machines: Vec<Host>,
    envs: Vec<Vec<(String, String)>>,
    /// The unit's command, adapted to these machines.
    start: String,
    /// Dropped last.
    _database: (Server, Host),
    lan: Lan,
}

impl Machines {
    fn start() -> Self {
        let unit = snippet("ini", "[Service]");
        let lan = Lan::new(&[(DATABASE, "db.example.com")]);
        let db = lan.host("db", DATABASE);
        let server = database(&db, "countersign", PASSWORD, "countersign");
        assert_eq!(setting(&unit, "EnvironmentFile"), "/etc/countersign/environment");
        assert_eq!(setting(&unit, "StateDirectory"), "countersign");
        let config = snippet("yaml", "behind_tls_proxy").replace("/countersign\n", "/countersign?sslmode=disable\n");
        let start = setting(&unit, "ExecStart").replace("/etc/", "/mnt/").replace("/var/lib/", "/mnt/");
        let mut all = Self { gateways: vec![], machines: vec![], envs: vec![], start, _database: (server, db), lan };
        for (n, address) in GATEWAYS.iter().enumerate() {
            let host = all.lan.host(&format!("machine{n}"), address);
            let file =
                snippet("sh", "COUNTERSIGN_LISTEN=").replace(GATEWAYS[0], address).replace("chosen-by-you", PASSWORD);
            let variables = file.lines().map(|line| line.split_once('=').unwrap());
            all.envs.push(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
            std::fs::create_dir_all(host.mnt().join("countersign")).unwrap();
            std::fs::write(host.mnt().join("countersign/countersign.yaml"), &config).unwrap();
            std::fs::write(host.mnt().join("countersign/environment"), &file).unwrap();
            all.machines.push(host);
            all.gateways.push(all.spawn(n));
        }
        let file = all.machines[0].mnt().join("countersign/gateway.json");
        eventually("its store is there", || file.exists().then_some(()));
        all
    }

    fn spawn(&self, n: usize) -> Process {
        self.machines[n].spawn(&self.start.split(' ').collect::<Vec<_>>(), &self.envs[n])
    }

    /// Creates a key with that role and name, by the command of the page.
    fn key(&self, role: &str, name: &str) -> String {
        let create = snippet("sh", "sudo sh -c").replace("/etc/", "/mnt/").replace("/var/lib/", "/mnt/");
        let create = create.trim().strip_prefix("sudo ").unwrap().replace("reviewer", role).replace("alice", name);
        key(&self.machines[0], &["sh", "-c", &create], &[])
    }
}

#[test]
fn systemd_unit_of_the_page_serves_on_three_machines() {
    run_in_namespaces("deployment::systemd_unit_of_the_page_serves_on_three_machines", || {
        let machines = Machines::start();
        let (reviewer, agent) = (machines.key("reviewer", "alice"), machines.key("agent", "robot"));
        let _balancer = nginx(&machines.lan.host("balancer", BALANCER), &shipped_file("nginx.conf"));
        one_change_through_the_balancer(&agent, &reviewer);
    });
}

#[test]
fn systemd_accepts_the_unit_of_the_page() {
    if !Command::new("systemd-analyze").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countersign.service");
    let program = binary();
    // It checks that the program exists.
    let unit = snippet("ini", "[Service]").replace("/usr/local/bin/countersign", program.to_str().unwrap());
    std::fs::write(&file, &unit).unwrap();
    let verify = || Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let output = verify();
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !report.contains("countersign.service"), "{report}");
    // It reports unknown settings.
    std::fs::write(&file, unit.replace("StateDirectory", "StatesDirectory")).unwrap();
    assert!(String::from_utf8_lossy(&verify().stderr).contains("StatesDirectory"));
}
