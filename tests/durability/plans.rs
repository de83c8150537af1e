//! A plan of 20 calls, during which the gateway is killed again and again: each step runs at most once, in order, and never
//! past a failure.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use support::{Gateway, Options, http::Conn, mcp, wait_until_ready};

const STEPS: usize = 20;
/// The points at which a gateway kills itself, and the passage. A kill between claim and call ends the plan, so it comes last.
const KILLS: [(&str, &str); 10] = [
    ("after_decide", "7"),
    ("before_claim", "2"),
    ("after_call", "2"),
    ("before_result", "2"),
    ("after_result", "3"),
    ("before_commit", "4"),
    ("after_announce", "3"),
    ("between_commit_and_announce", "4"),
    ("after_commit", "6"),
    ("after_claim", "1"),
];

/// A reviewer at a gateway that may be killed meanwhile.
struct Reviewer<'a> {
    gateway: SocketAddr,
    key: &'a str,
    plan: &'a str,
    project: &'a str,
}

impl Reviewer<'_> {
    /// Sends a request, and returns its status and its body, or `None` if the gateway is gone.
    fn send(&self, method: &str, path: &str, key: Option<&str>, body: Option<&Value>) -> Option<(u16, Value)> {
        let mut conn = Conn::try_open(self.gateway).ok()?;
        let bearer = key.map(|key| format!("Bearer {key}"));
        let mut headers = vec![mcp::JSON];
        headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
        conn.request(method, path, &headers, body.map(Value::to_string).unwrap_or_default().as_bytes());
        let response = conn.try_response()?;
        Some((response.status, response.try_json()?))
    }

    /// Reads what must be there, and returns `None` if the gateway is gone.
    fn read(&self, method: &str, path: &str, key: Option<&str>, body: Option<&Value>) -> Option<Value> {
        let (status, body) = self.send(method, path, key, body)?;
        assert_eq!(status, 200, "{method} {path}: {body}");
        Some(body)
    }

    /// Decides or settles, which may come too late, and returns `None` if the gateway is gone.
    fn post(&self, path: &str, body: &Value) -> Option<()> {
        self.send("POST", path, Some(self.key), Some(body)).map(drop)
    }

    /// Returns `true` if the tracker has the issue of a step.
    fn has_issue(&self, step: usize) -> Option<bool> {
        let mut body = json!({ "projectId": self.project });
        loop {
            let page = self.read("POST", "/tools/list_issues", None, Some(&body))?["structuredContent"].clone();
            if page["issues"].as_array()?.iter().any(|issue| issue["title"] == title(step)) {
                return Some(true);
            }
            match page["nextCursor"].as_str() {
                Some(cursor) => body["cursor"] = cursor.into(),
                None => return Some(false),
            }
        }
    }

    /// Decides, settles and waits until the plan is over or the gateway is gone. Returns the plan once it is over.
    fn drive(&self) -> Option<Value> {
        loop {
            let shown = self.read("GET", &format!("/api/plans/{}", self.plan), Some(self.key), None)?;
            let steps = shown["changes"].as_array()?;
            let final_states = ["applied", "failed", "rejected", "expired", "withdrawn"];
            if steps.iter().all(|step| final_states.contains(&step["state"].as_str().unwrap())) {
                return Some(shown);
            }
            if let Some(lost) = steps.iter().find(|step| step["state"] == "outcome_unknown") {
                // The tracker knows whether the call had an effect.
                let step = usize::try_from(lost["plan"]["index"].as_u64().unwrap()).unwrap();
                let outcome = if self.has_issue(step)? { "applied" } else { "failed" };
                let body = json!({ "outcome": outcome, "comment": "looked", "version": lost["version"] });
                self.post(&format!("/api/changes/{}/settle", lost["id"].as_str().unwrap()), &body)?;
            } else if steps.iter().any(|step| step["state"] == "pending") {
                let digests: Vec<Value> =
                    steps.iter().map(|step| json!({ "change": step["id"], "digest": step["digest"] })).collect();
                let body = json!({ "decision": "approve", "digests": digests });
                self.post(&format!("/api/plans/{}/decision", self.plan), &body)?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn title(step: usize) -> String {
    format!("Step {step} of the plan")
}

#[test]
fn plan_runs_each_step_once_and_in_order_despite_kills() {
    let gateway = Gateway::start();
    let key = gateway.create_key("reviewer", "carol");
    let project = gateway.project();
    let calls: Vec<Value> = (0..STEPS)
        .map(|step| {
            let arguments = json!({ "projectId": project, "title": title(step), "type": "Story" });
            json!({ "name": "create_issue", "arguments": arguments })
        })
        .collect();
    let proposed = gateway.tool("propose_plan", json!({ "title": "Twenty issues", "calls": calls }));
    let plan = proposed["planId"].as_str().unwrap().to_owned();
    assert_eq!(proposed["changes"].as_array().unwrap().len(), STEPS);
    let (_, home) = gateway.stop();
    let at = |gateway| Reviewer { gateway, key: &key, plan: &plan, project: &project };
    for (point, passage) in KILLS {
        let env = vec![("COUNTERSIGN_CRASH_AT", point), ("COUNTERSIGN_CRASH_AFTER", passage)];
        let mut process = Gateway::spawn(home.path(), &Options { env, ..Options::default() });
        // The plan goes on while the gateway starts, so it may be killed before it answers.
        let port = wait_until_ready(&mut process, &home.path().join("data"));
        let over = port.and_then(|port| at(([127, 0, 0, 1], port).into()).drive());
        if over.is_some() {
            process.terminate();
        }
        let status = process.wait_for_exit();
        assert!(over.is_some() || status.code().is_none(), "{point}: it was killed, it did not exit: {status:?}");
    }
    let gateway = Gateway::on_home(home, &Options::default());
    let over = at(gateway.address()).drive().expect("the plan ends");
    let states: Vec<&str> =
        over["changes"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect();
    let applied = states.iter().take_while(|state| **state == "applied").count();
    let ran: Vec<usize> = (0..STEPS).map(|step| gateway.issues_titled(&title(step))).collect();
    assert!(ran.iter().take(applied).all(|times| *times == 1), "each applied step ran once: {ran:?} {states:?}");
    assert!(ran.iter().skip(applied).all(|times| *times == 0), "no other step ran: {ran:?} {states:?}");
    match states.get(applied) {
        // A call that was lost before it was sent was settled as failed, which ends the plan.
        Some(end) => {
            assert_eq!(*end, "failed", "{states:?}");
            assert!(states.iter().skip(applied + 1).all(|state| *state == "withdrawn"), "{states:?}");
        }
        None => assert_eq!(applied, STEPS),
    }
    let (_, home) = gateway.stop();
    let data = home.path().join("data");
    let (code, out, err) = support::run(&["audit", "verify", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
}
