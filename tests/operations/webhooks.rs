//! Tests of webhooks through the program: receivers that fail, are slow, redirect, hang up or ask for a pause; kills in
//! between; order, signatures and lists. Also the export of the audit trail.

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::{Arc, Condvar, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac;
use serde_json::{Value, json};
use support::{Gateway, Options, command, eventually};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// One request as received.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    headers: BTreeMap<String, String>,
    body: String,
    /// The status of the response.
    status: u16,
}

impl ReceivedRequest {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
    fn change(&self) -> String {
        self.json()["change"]["id"].as_str().unwrap().to_owned()
    }
    fn seq(&self) -> u64 {
        self.json()["seq"].as_u64().unwrap()
    }
}

/// A receiver's reaction to a request.
enum Reaction {
    Answer(u16, &'static str),
    /// Closes the connection instead of answering.
    HangUp,
    /// Never answers.
    NeverAnswer,
}

type Behaviour = dyn Fn(&ReceivedRequest) -> Reaction + Send + Sync;

/// A loopback server that reacts as told and records its requests.
struct Receiver {
    port: u16,
    hits: Arc<Mutex<Vec<ReceivedRequest>>>,
    behaviour: Arc<Mutex<Box<Behaviour>>>,
}

impl Receiver {
    fn new(behaviour: impl Fn(&ReceivedRequest) -> Reaction + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let hits: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let behaviour: Arc<Mutex<Box<Behaviour>>> = Arc::new(Mutex::new(Box::new(behaviour)));
        let (requests, current_behaviour) = (Arc::clone(&hits), Arc::clone(&behaviour));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, current_behaviour) = (Arc::clone(&requests), Arc::clone(&current_behaviour));
                std::thread::spawn(move || serve(stream.unwrap(), &requests, &current_behaviour));
            }
        });
        Self { port, hits, behaviour }
    }

    fn set_behaviour(&self, behaviour: impl Fn(&ReceivedRequest) -> Reaction + Send + Sync + 'static) {
        *self.behaviour.lock().unwrap() = Box::new(behaviour);
    }

    fn requests(&self) -> Vec<ReceivedRequest> {
        self.hits.lock().unwrap().clone()
    }

    fn accepted(&self) -> Vec<ReceivedRequest> {
        self.requests().into_iter().filter(|request| request.status == 200).collect()
    }

    fn config(&self, more: &str) -> String {
        format!(
            "webhooks: {{ hook: {{ url: 'http://127.0.0.1:{}/in?token=credential', secret: '${{KEY}}'{more} }} }}\n",
            self.port
        )
    }
}

fn serve(stream: std::net::TcpStream, requests: &Mutex<Vec<ReceivedRequest>>, behaviour: &Mutex<Box<Behaviour>>) {
    let mut out = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let mut headers = BTreeMap::new();
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|n| n > 0) && line.trim() != "" {
            if let Some((name, value)) = line.split_once(':') {
                headers.insert(name.to_lowercase(), value.trim().to_owned());
            }
            line.clear();
        }
        let Some(length) = headers.get("content-length").and_then(|n| n.parse::<usize>().ok()) else { return };
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut request = ReceivedRequest { headers, body: String::from_utf8(body).unwrap(), status: 0 };
        let doing = behaviour.lock().unwrap()(&request);
        if let Reaction::Answer(status, _) = doing {
            request.status = status;
        }
        requests.lock().unwrap().push(request);
        match doing {
            Reaction::Answer(status, more) => {
                let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n{more}\r\nno");
                if out.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
            Reaction::HangUp => return,
            Reaction::NeverAnswer => {
                let _ = reader.read(&mut [0; 1]);
                return;
            }
        }
    }
}

fn accept(_: &ReceivedRequest) -> Reaction {
    Reaction::Answer(200, "")
}

fn gateway(config: &str) -> Gateway {
    Gateway::with_options(&Options { env: vec![("KEY", SECRET)], config: Some(config) })
}

fn hook(gateway: &Gateway) -> Value {
    gateway.api("GET", "/api/webhooks", None).1["webhooks"][0].clone()
}

#[track_caller]
fn check_signature(request: &ReceivedRequest) {
    let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).unwrap();
    let content =
        format!("{}.{}.{}", request.headers["webhook-id"], request.headers["webhook-timestamp"], request.body);
    let signature = STANDARD.decode(request.headers["webhook-signature"].strip_prefix("v1,").unwrap()).unwrap();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &key), content.as_bytes(), &signature).unwrap();
}

/// Checks that all events arrived, in order for each change, with one id for each event.
#[track_caller]
fn check_order(received: &[ReceivedRequest]) {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut seen = HashSet::new();
    for request in received.iter().filter(|request| seen.insert(request.seq())) {
        let before = last.insert(request.change(), request.seq());
        assert!(before < Some(request.seq()), "{} came after {before:?}", request.seq());
    }
}

#[test]
fn events_arrive_signed_and_in_order() {
    let odd = Mutex::new(0_u32);
    let receiver = Receiver::new(move |_| {
        let mut n = odd.lock().unwrap();
        *n += 1;
        match *n {
            1 => Reaction::Answer(500, ""),
            2 => Reaction::HangUp,
            4 => Reaction::Answer(302, "location: /elsewhere\r\n"),
            5 => Reaction::Answer(429, "retry-after: 1\r\n"),
            _ => Reaction::Answer(200, ""),
        }
    });
    let gateway = gateway(&receiver.config(""));
    let changes = ["a", "b", "c"].map(|title| gateway.propose(title));
    for change in &changes {
        gateway.decide(change, "approve");
        gateway.wait_for_state(change, "applied");
    }
    let accepted = eventually("all arrive", || Some(receiver.accepted()).filter(|accepted| accepted.len() >= 15));
    check_order(&accepted);
    receiver.requests().iter().for_each(check_signature);
    let hits = receiver.requests();
    let ids: BTreeMap<u64, HashSet<&String>> = hits.iter().fold(BTreeMap::new(), |mut ids, request| {
        ids.entry(request.seq()).or_default().insert(&request.headers["webhook-id"]);
        ids
    });
    assert!(ids.len() == 15 && ids.values().all(|ids| ids.len() == 1), "one id, however often it is sent");
    let first = accepted.iter().find(|request| request.seq() == 1).unwrap();
    assert_eq!(first.headers["countersign-event"], "change.created");
    let link = first.json()["link"].as_str().unwrap().to_owned();
    assert_eq!(link, format!("http://127.0.0.1:{}/#/inbox/{}", gateway.port, changes[0]));
    assert!(first.json()["change"]["arguments"].is_null() && first.json()["change"]["diff"].is_null());
    eventually("all are through", || (hook(&gateway)["position"] == 15).then_some(()));
    let (status, page) = gateway.api("GET", "/api/webhooks/hook/deliveries?limit=5", None);
    assert_eq!((status, page["deliveries"].as_array().unwrap().len()), (200, 5));
    let numbers: BTreeMap<u64, u64> = page["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| (d["id"].as_u64().unwrap(), d["seq"].as_u64().unwrap()))
        .collect();
    assert_eq!(numbers.keys().copied().collect::<Vec<_>>(), (11..=15).collect::<Vec<_>>());
    assert!(numbers.iter().all(|(id, seq)| id == seq), "{numbers:?}");
    let next = format!("/api/webhooks/hook/deliveries?cursor={}", page["nextCursor"].as_str().unwrap());
    let (_, rest) = gateway.api("GET", &next, None);
    assert_eq!(rest["deliveries"].as_array().unwrap().len(), 10);
    assert!(rest["deliveries"].as_array().unwrap().iter().all(|delivery| delivery["state"] == "delivered"));
    let visible = format!("{} {}", gateway.log(), hook(&gateway));
    assert!(!visible.contains("credential") && !visible.contains("MfKQ9"), "no secret is reported");
}

#[test]
fn json_template_removes_agents_mentions_and_links() {
    let receiver = Receiver::new(accept);
    let gateway = gateway(&receiver.config(r#", template: '{"text": "{change.summary}", "see": "{link}"}'"#));
    gateway.propose("<!channel> @everyone <https://evil.example|Approve> [x](https://evil.example)");
    let request = eventually("it arrives", || receiver.accepted().into_iter().next());
    let text = request.json()["text"].as_str().unwrap().to_owned();
    assert!(text.contains("everyone") && text.contains("evil.example"), "it stays readable: {text}");
    for sign in ["<", ">", "@", "://"] {
        assert!(!text.contains(sign), "{sign}: {text}");
    }
    assert!(request.json()["see"].as_str().unwrap().starts_with("http://127.0.0.1"), "the gateway's own link is one");
}

#[test]
fn events_during_downtime_arrive_later() {
    let receiver = Receiver::new(|_| Reaction::HangUp);
    let config = receiver.config(", events: [change.created, change.rejected]");
    let mut gateway = gateway(&config);
    let mut changes = Vec::new();
    for round in 0..3 {
        changes.push(gateway.propose(&format!("round {round}")));
        gateway.decide(&changes[round], "reject");
        eventually("it tries", || (receiver.requests().len() > round).then_some(()));
        let home = gateway.kill();
        gateway = Gateway::on_home(home, &Options { env: vec![("KEY", SECRET)], config: Some(&config) });
    }
    assert!(receiver.accepted().is_empty());
    receiver.set_behaviour(accept);
    let key = gateway.reviewer().to_owned();
    let (status, _) = gateway.api_as(&key, "POST", "/api/webhooks/hook/retry", None);
    assert_eq!(status, 200);
    let accepted = eventually("all arrive", || Some(receiver.accepted()).filter(|accepted| accepted.len() >= 6));
    check_order(&accepted);
    let seqs: HashSet<u64> = accepted.iter().map(ReceivedRequest::seq).collect();
    assert_eq!(seqs, (1..=6).collect(), "each of them, and nothing else");
    eventually("it is noted", || (hook(&gateway)["waiting"] == 0).then_some(()));
    let hits = receiver.requests().len();
    let home = gateway.kill();
    let gateway = Gateway::on_home(home, &Options { env: vec![("KEY", SECRET)], config: Some(&config) });
    let late = gateway.propose("late");
    eventually("the new one arrives", || {
        receiver.accepted().iter().any(|request| request.change() == late).then_some(())
    });
    assert_eq!(receiver.requests().len(), hits + 1, "what was delivered is not sent again");
}

#[test]
fn failing_delivery_delays_no_other_and_is_given_up() {
    let receiver = Receiver::new(|request| {
        if request.json()["change"]["summary"].as_str().unwrap().contains("poison") {
            Reaction::Answer(410, "")
        } else {
            Reaction::Answer(200, "")
        }
    });
    let gateway = gateway(&receiver.config(", events: [change.created]"));
    let poison = gateway.propose("poison");
    let other = gateway.propose("other");
    eventually("the other arrives", || {
        receiver.accepted().iter().any(|request| request.change() == other).then_some(())
    });
    let delivery = eventually("it is given up", || {
        let (_, page) = gateway.api("GET", "/api/webhooks/hook/deliveries", None);
        let found = page["deliveries"].as_array().unwrap().iter().find(|d| d["changeId"] == poison.as_str()).cloned();
        found.filter(|delivery| delivery["state"] == "given_up")
    });
    assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!(410), &json!(1)));
    receiver.set_behaviour(accept);
    let (_, again) = gateway.api("POST", "/api/webhooks/hook/retry", None);
    assert_eq!(again, json!({ "again": 1 }));
    eventually("it arrives", || receiver.accepted().iter().any(|request| request.change() == poison).then_some(()));
}

#[test]
fn receiver_outage_and_return_are_reported() {
    let receiver = Receiver::new(|_| Reaction::NeverAnswer);
    let gateway = gateway(&receiver.config(", timeout: 1s"));
    let bearer = format!("Bearer {}", gateway.reviewer());
    let mut feed = gateway.connect();
    feed.request("GET", "/api/events", &[("Authorization", &bearer), ("Accept", "text/event-stream")], b"");
    assert_eq!(feed.head().status, 200);
    let mut wait_for_event = |kind: &str| {
        for _ in 0..50 {
            let event = feed.expect_event();
            if event.event.as_deref() == Some(kind) {
                return event.json();
            }
        }
        panic!("{kind} was not reported");
    };
    for title in ["a", "b", "c"] {
        gateway.propose(title);
    }
    let failing = wait_for_event("webhook.failing");
    assert_eq!(failing["webhook"], "hook");
    assert!(failing["error"].as_str().unwrap().contains("no answer"), "{failing}");
    let listed = eventually("all wait", || Some(hook(&gateway)).filter(|hook| hook["waiting"] == 3));
    assert_eq!(listed["failing"], true, "{listed}");
    assert!(listed["url"] == format!("http://127.0.0.1:{}/…", receiver.port), "{listed}");
    receiver.set_behaviour(accept);
    wait_for_event("webhook.recovered");
    // A delivery is repeated if its answer comes too late.
    let arrived = || receiver.accepted().iter().map(ReceivedRequest::seq).collect::<HashSet<_>>().len();
    eventually("all arrive", || (arrived() == 3).then_some(()));
    eventually("it is up", || (hook(&gateway)["failing"] == false).then_some(()));
}

/// Replaces the webhooks in the configuration by this YAML.
fn hooks(gateway: &Gateway, yaml: &str) {
    std::fs::write(gateway.data().join("../countersign.yaml"), yaml).unwrap();
}

#[test]
fn webhooks_are_reconfigured_at_runtime() {
    let (old, new) = (Receiver::new(|_| Reaction::HangUp), Receiver::new(accept));
    let gateway = gateway("");
    let generation = || gateway.api("GET", "/api/reload", None).1["generation"].as_u64().unwrap();
    let reload = |yaml: &str| {
        let before = generation();
        hooks(&gateway, yaml);
        eventually("it is in force", || (generation() > before).then_some(()));
    };
    assert_eq!(gateway.api("GET", "/api/webhooks", None).1["webhooks"], json!([]));
    let unheard = gateway.propose("before");
    reload(&old.config(", events: [change.created, 'rule.*', 'provider.*', 'config.*']"));
    let waits = gateway.propose("waits");
    eventually("it is tried", || (!old.requests().is_empty()).then_some(()));
    // With a new address, secret and filter, pending events go there from their position on.
    reload(&new.config(", events: [change.created, 'rule.*', 'provider.*', 'config.*'], states: [pending]"));
    eventually("it arrives", || new.accepted().iter().any(|request| request.body.contains(&waits)).then_some(()));
    assert!(!new.accepted().iter().any(|request| request.body.contains(&unheard)), "it begins at the head");
    let one = hook(&gateway);
    assert_eq!((&one["states"], &one["failing"]), (&json!(["pending"]), &json!(false)), "{one}");
    // Standing rules and configuration changes are reported.
    let rule = json!({ "verdict": "allow", "arguments": "exact", "principal": "same", "for": 60 });
    let (status, rule) = gateway.api("POST", &format!("/api/changes/{waits}/rule"), Some(&rule));
    assert_eq!(status, 200, "{rule}");
    let event = eventually("the rule is reported", || {
        new.accepted().into_iter().find(|request| request.headers["countersign-event"] == "rule.created")
    });
    check_signature(&event);
    assert!(event.json()["rule"]["arguments"].is_null() && !event.headers.contains_key("countersign-seq"));
    assert!(event.json()["link"].as_str().unwrap().ends_with("/#/rules"));
    hooks(&gateway, "webhooks: nonsense");
    let event = eventually("the refusal is reported", || {
        new.accepted().into_iter().find(|request| request.headers["countersign-event"] == "config.refused")
    });
    assert!(event.body.contains("expected a map of webhooks"), "{}", event.body);
    let (_, page) = gateway.api("GET", "/api/webhooks/hook/deliveries", None);
    let subjects: HashSet<&str> =
        page["deliveries"].as_array().unwrap().iter().map(|d| d["subject"].as_str().unwrap()).collect();
    assert!(subjects.contains("configuration") && subjects.contains(rule["id"].as_str().unwrap()), "{subjects:?}");
    // A disabled webhook keeps its position.
    reload(&new.config(", disabled: true"));
    let paused = gateway.propose("paused");
    reload(&new.config(""));
    eventually("it arrives", || new.accepted().iter().any(|request| request.body.contains(&paused)).then_some(()));
    // A removed webhook is forgotten, and the gateway continues.
    reload("listen: 127.0.0.1:0\n");
    let hits = new.requests().len();
    gateway.propose("unheard");
    assert_eq!(gateway.api("GET", "/api/webhooks/hook/deliveries", None).0, 404);
    reload(&new.config(""));
    let late = gateway.propose("late");
    eventually("it arrives", || new.accepted().iter().any(|request| request.body.contains(&late)).then_some(()));
    assert_eq!(new.requests().len(), hits + 1, "it began anew");
    let visible = format!("{} {}", gateway.log(), gateway.api("GET", "/api/reload", None).1);
    assert!(!visible.contains("credential") && !visible.contains("MfKQ9"), "no secret is reported");
}

/// Runs `countersign …` with that key; returns exit code, stdout and stderr.
fn cli(gateway: &Gateway, key: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let url = format!("http://127.0.0.1:{}", gateway.port);
    let output = command(&[("COUNTERSIGN_KEY", key)]).args(args).args(["--url", &url]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn webhook_commands_work_and_viewer_only_reads() {
    let receiver = Receiver::new(|_| Reaction::Answer(404, ""));
    let gateway = gateway(&receiver.config(", format: slack"));
    let reviewer = gateway.reviewer().to_owned();
    let viewer = gateway.create_key("viewer", "vera");
    let (code, _, err) = cli(&gateway, &reviewer, &["webhooks", "test", "hook"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("404"), "{err}");
    receiver.set_behaviour(accept);
    let (code, out, err) = cli(&gateway, &reviewer, &["webhooks", "test", "hook"]);
    assert_eq!((code, out.contains("Delivered")), (Some(0), true), "{err}");
    let message = receiver.accepted()[0].json();
    assert!(message["text"].as_str().unwrap().contains("A test of this webhook"), "{message}");
    let change = gateway.propose("<!channel> <https://evil|x>");
    eventually("it arrives", || (receiver.accepted().len() == 2).then_some(()));
    let message = receiver.accepted()[1].body.clone();
    assert!(message.contains("&lt;!channel&gt;") && !message.contains("<!channel>"), "{message}");
    assert!(message.contains(&format!("/#/inbox/{change}")), "{message}");
    eventually("it is noted", || {
        let (_, out, _) = cli(&gateway, &viewer, &["webhooks", "deliveries", "hook"]);
        (out.contains("delivered") && out.contains(&change)).then_some(())
    });
    let (code, out, _) = cli(&gateway, &viewer, &["webhooks"]);
    assert_eq!((code, out.contains("hook  up  slack to http://127.0.0.1:")), (Some(0), true), "{out}");
    assert_eq!(cli(&gateway, &viewer, &["webhooks", "retry", "hook"]).0, Some(5));
    assert_eq!(cli(&gateway, &viewer, &["webhooks", "test", "hook"]).0, Some(5));
    assert_eq!(cli(&gateway, &reviewer, &["webhooks", "deliveries", "none"]).0, Some(3));
}

#[test]
fn audit_trail_is_exported_completely() {
    let gateway = Gateway::start();
    let viewer = gateway.create_key("viewer", "vera");
    let bearer = format!("Bearer {viewer}");
    // More than one page of an export.
    for n in 0..230 {
        gateway.propose(&format!("n {n}"));
    }
    let change = gateway.propose("last");
    let (status, _) = gateway.try_decide(&change, "reject", "=HYPERLINK(\"evil\")");
    assert_eq!(status, 200);
    let get = |path: &str| gateway.request("GET", path, &[("Authorization", &bearer)], b"");
    let answer = get("/api/audit/export");
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body.clone()).unwrap();
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The changes, their decisions, the two created keys, and the policy at the start.
    assert_eq!(entries.len(), 235);
    for (before, entry) in entries.iter().zip(&entries[1..]) {
        assert_eq!(entry["prevHash"], before["hash"]);
        assert_eq!(entry["seq"].as_u64(), before["seq"].as_u64().map(|seq| seq + 1));
    }
    let data = gateway.data();
    let (code, out, err) = support::run(&["audit", "export", "--data", data.to_str().unwrap()]);
    assert_eq!((code, out == text), (Some(0), true), "{err}");
    let csv = String::from_utf8(get("/api/audit/export?format=csv").body).unwrap();
    assert!(csv.starts_with("seq,at,changeId,event,from,to,actor,details,prevHash,hash\r\n1,"), "{:.200}", csv);
    assert_eq!(csv.matches("\r\n").count(), 236);
    let last = entries[234]["at"].as_str().unwrap();
    let one = String::from_utf8(get(&format!("/api/audit/export?since={last}")).body).unwrap();
    assert!(one.lines().count() >= 1 && one.lines().last() == text.lines().last(), "{one}");
    let none = get("/api/audit/export?until=2000-01-01T00:00:00Z");
    assert_eq!((none.status, none.body.len()), (200, 0));
    assert_eq!(get("/api/audit/export?format=xml").status, 400);
    assert_eq!(gateway.request("GET", "/api/audit/export", &[], b"").status, 401);
}

/// The next sender, possibly another node, then repeats nothing that arrived and overtakes nothing.
#[test]
fn ending_gateway_waits_for_delivery_answers() {
    eventually("an answer comes in time", answer_delivery_of_ending_gateway);
}

/// Returns `None` if the machine is too busy to answer in the two seconds for which a gateway waits.
fn answer_delivery_of_ending_gateway() -> Option<()> {
    let gate = Arc::new((Mutex::new((false, false)), Condvar::new()));
    let held = Arc::clone(&gate);
    let receiver = Receiver::new(move |_| {
        let mut state = held.0.lock().unwrap();
        state.0 = true;
        drop(held.1.wait_while(state, |(_, open)| !*open).unwrap());
        Reaction::Answer(200, "")
    });
    let config = receiver.config("");
    let mut gateway = gateway(&config);
    let first = gateway.propose("under way");
    eventually("it is under way", || gate.0.lock().unwrap().0.then_some(()));
    let terminated = std::time::Instant::now();
    gateway.process.terminate();
    eventually("it ends", || gateway.log().contains("ending").then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(200));
    gate.0.lock().unwrap().1 = true;
    gate.1.notify_all();
    (terminated.elapsed() < std::time::Duration::from_secs(1)).then_some(())?;
    assert!(gateway.process.wait_for_exit().success(), "{}", gateway.log());
    let home = gateway.kill();
    let options = Options { env: vec![("KEY", SECRET)], config: Some(&config) };
    let gateway = Gateway::on_home(home, &options);
    let second = gateway.propose("after it");
    eventually("the next one arrives", || {
        receiver.requests().iter().any(|request| request.change() == second).then_some(())
    });
    let changes: Vec<String> = receiver.requests().iter().map(ReceivedRequest::change).collect();
    assert_eq!(changes, [first, second], "each once");
    Some(())
}
