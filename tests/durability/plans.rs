//! A plan of 20 calls, during which the gateway is killed again and again: each step runs at most once, in order, and never
//! past a failure.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Gateway, Options, http::Conn, mcp};

const STEPS: usize = 20;
/// The points at which a gateway kills itself, and the passage.
const KILLS: [(&str, &str); 10] = [
    ("after_decide", "7"),
    ("before_claim", "2"),
    ("after_claim", "1"),
    ("after_call", "2"),
    ("before_result", "2"),
    ("after_result", "3"),
    ("before_commit", "5"),
    ("after_commit", "6"),
    ("between_commit_and_announce", "4"),
    ("after_announce", "3"),
];

/// Calls the REST API of a gateway that may be killed meanwhile.
fn try_api(gateway: &Gateway, key: &str, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    let mut conn = Conn::try_open(gateway.address()).ok()?;
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str()), mcp::JSON];
    conn.request(method, path, &headers, body.map(Value::to_string).unwrap_or_default().as_bytes());
    conn.try_response().map(|response| response.json_or_null())
}

fn title(step: usize) -> String {
    format!("Step {step} of the plan")
}

/// Decides, settles and waits until the plan is over or the gateway is gone. Returns the plan once it is over.
fn drive(gateway: &Gateway, key: &str, plan: &str) -> Option<Value> {
    loop {
        let shown = try_api(gateway, key, "GET", &format!("/api/plans/{plan}"), None)?;
        let steps = shown["changes"].as_array()?;
        let final_states = ["applied", "failed", "rejected", "expired", "withdrawn"];
        if steps.iter().all(|step| final_states.contains(&step["state"].as_str().unwrap())) {
            return Some(shown);
        }
        if let Some(lost) = steps.iter().find(|step| step["state"] == "outcome_unknown") {
            // The tracker knows whether the call had an effect.
            let step = usize::try_from(lost["plan"]["index"].as_u64().unwrap()).unwrap();
            let outcome = if gateway.issues_titled(&title(step)) > 0 { "applied" } else { "failed" };
            let body = json!({ "outcome": outcome, "comment": "looked", "version": lost["version"] });
            try_api(
                gateway,
                key,
                "POST",
                &format!("/api/changes/{}/settle", lost["id"].as_str().unwrap()),
                Some(&body),
            )?;
        } else if steps.iter().any(|step| step["state"] == "pending") {
            let digests: Vec<Value> =
                steps.iter().map(|step| json!({ "change": step["id"], "digest": step["digest"] })).collect();
            let body = json!({ "decision": "approve", "digests": digests });
            try_api(gateway, key, "POST", &format!("/api/plans/{plan}/decision"), Some(&body))?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
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
    let (_, mut home) = gateway.stop();
    let mut over = None;
    for (point, passage) in KILLS {
        let env = vec![("COUNTERSIGN_CRASH_AT", point), ("COUNTERSIGN_CRASH_AFTER", passage)];
        let mut gateway = Gateway::on_home(home, &Options { env, ..Options::default() });
        over = drive(&gateway, &key, &plan);
        home = if over.is_some() {
            gateway.stop().1
        } else {
            let status = gateway.process.wait_for_exit();
            assert_eq!(status.code(), None, "it was killed at {point}: {status:?}\n{}", gateway.log());
            gateway.kill()
        };
    }
    let gateway = Gateway::on_home(home, &Options::default());
    let over = over.or_else(|| drive(&gateway, &key, &plan)).expect("the plan ends");
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
