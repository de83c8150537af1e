//! Absences of people and their deputies.

use countersign_domain::{
    policy::{GroupMember, Groups},
    principal::Claims,
};
use countersign_store::people::StoredPerson;

use super::*;

/// Returns endpoints whose group `dba` lists Alice, and a person of an identity provider.
async fn open() -> Endpoints {
    let endpoints = Endpoints::open().await;
    let subject = GroupMember::Subject { issuer: "https://id.example".into(), subject: "ada".into() };
    let members = vec![GroupMember::Name("alice".into()), subject];
    endpoints.data.sign_in.reviewers.set_groups(&Groups::from([("dba".to_owned(), members)]));
    endpoints
}

async fn request(endpoints: &Endpoints, method: &str, key: &str, body: Option<&Value>) -> Reply {
    let authorization = format!("Bearer {key}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    let body = body.map(Value::to_string);
    endpoints.send(method, "/api/account/absence", &headers, body.as_deref()).await
}

fn absence(seconds: i64, deputy: &str) -> Value {
    json!({ "until": Timestamp::now() + jiff::SignedDuration::from_secs(seconds), "deputy": deputy })
}

#[actix::test]
async fn absence_lets_a_deputy_decide_until_it_ends() {
    let endpoints = open().await;
    let [alice, bob, viewer] = [("alice", Role::Reviewer), ("bob", Role::Reviewer), ("vic", Role::Viewer)]
        .map(|(name, role)| endpoints.key(name, role));
    let terms = || Terms { reviewers: vec!["dba".into()], ..Terms::default() };
    let change = endpoints.propose("agent", "sha256:tool", terms()).await;
    let path = format!("/api/changes/{}/decision", change.id);
    let approve = json!({ "decision": "approve", "version": change.version });
    assert_eq!(endpoints.post(&path, &bob, &approve).await.problem(403), "FORBIDDEN");

    let set = request(&endpoints, "PUT", &alice, Some(&absence(3600, "Bob"))).await;
    assert_eq!((set.status, set.json()["absence"]["deputy"].as_str()), (200, Some("bob")), "{set:?}");
    let me = endpoints.get("/api/me", &bob).await.json();
    assert_eq!((&me["groups"], &me["deputyFor"][0]["name"]), (&json!([]), &json!("alice")));
    assert_eq!(me["deputyFor"][0]["groups"], json!(["dba"]));
    let me = endpoints.get("/api/me", &alice).await.json();
    assert_eq!((&me["absence"]["deputy"], me.get("deputyFor")), (&json!("bob"), None));
    assert_eq!(endpoints.post(&path, &viewer, &approve).await.problem(403), "FORBIDDEN");
    let approved = endpoints.post(&path, &bob, &approve).await.json();
    assert_eq!(approved["decisions"][0]["deputyFor"]["name"], "alice", "{approved}");

    let ended = request(&endpoints, "DELETE", &alice, None).await;
    assert_eq!((ended.status, ended.json().get("absence")), (200, None));
    assert_eq!(request(&endpoints, "DELETE", &alice, None).await.problem(404), "NOT_FOUND");
    let later = endpoints.propose("agent", "sha256:tool", terms()).await;
    let path = format!("/api/changes/{}/decision", later.id);
    assert_eq!(endpoints.post(&path, &bob, &approve).await.problem(403), "FORBIDDEN");
    let entries = endpoints.get("/api/audit", &alice).await.json();
    let of = |event: &str| {
        let found = entries["entries"].as_array().unwrap().iter().find(|entry| entry["event"] == event);
        found.unwrap_or_else(|| panic!("{entries}")).clone()
    };
    assert_eq!((&of("away")["actor"], &of("away")["details"]["deputy"]), (&json!("alice"), &json!("bob")));
    assert_eq!(of("back")["actor"], "alice");
    assert_eq!(of("approved")["details"]["deputyFor"], "alice");
    endpoints.close().await;
}

#[actix::test]
async fn deputy_is_somebody_else_who_may_decide() {
    let endpoints = open().await;
    let alice = endpoints.key("alice", Role::Reviewer);
    let viewer = endpoints.key("vic", Role::Viewer);
    endpoints.key("ci", Role::Agent);
    endpoints.key("root", Role::Admin);
    let owned = |name: &str, owner: &str| {
        let new = keys::create(name, Role::Reviewer, Timestamp::now()).unwrap().owned_by(Some(owner)).unwrap();
        endpoints.stored.writer().insert(&new.key, &new.hash).unwrap();
    };
    owned("desk", "bob");
    owned("erik", "frida");
    owned("x", "erik");
    owned("phone", "Alice");
    let claims = Claims { display_name: Some("Ada".into()), json: "{}".into(), ..Claims::default() };
    let person = |subject: &str, role: Option<Role>, revoked_at| StoredPerson {
        name: format!("https://id.example#{subject}"),
        role,
        claims: Arc::new(claims.clone()),
        updated_at: Timestamp::now(),
        revoked_at,
    };
    for stored in [
        person("ada", Some(Role::Reviewer), None),
        person("vera", Some(Role::Viewer), None),
        person("none", None, None),
    ] {
        endpoints.stored.writer().put_person(&stored).unwrap();
    }
    let gone = person("gone", Some(Role::Reviewer), None);
    endpoints.stored.writer().put_person(&gone).unwrap();
    endpoints.stored.writer().revoke_person(&gone.name, Timestamp::now()).unwrap();

    let state = request(&endpoints, "GET", &alice, None).await.json();
    let names: Vec<&str> =
        state["deputies"].as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(state["groups"], json!(["dba"]));
    assert_eq!(names, ["bob", "erik", "frida", "https://id.example#ada", "root"]);
    for (deputy, stored) in [("desk", "bob"), ("ROOT", "root"), ("https://id.example#ada", "https://id.example#ada")] {
        let set = request(&endpoints, "PUT", &alice, Some(&absence(60, deputy))).await;
        assert_eq!(set.json()["absence"]["deputy"], stored, "{set:?}");
    }
    // A name that is a key of one person and the owner of another key is ambiguous.
    for deputy in [
        "alice",
        "phone",
        "ALICE",
        "vic",
        "ci",
        "nobody",
        "",
        "erik",
        "Ada",
        "ada",
        "https://id.example#Ada",
        "https://id.example#vera",
        "https://id.example#none",
        "https://id.example#gone",
    ] {
        let refused = request(&endpoints, "PUT", &alice, Some(&absence(60, deputy))).await;
        assert_eq!(refused.problem(422), "VALIDATION_FAILED", "{deputy}");
    }
    for seconds in [-1, 60 * 86_400 + 60] {
        assert_eq!(request(&endpoints, "PUT", &alice, Some(&absence(seconds, "bob"))).await.status, 422, "{seconds}");
    }
    let for_other = json!({ "until": "2099-01-01T00:00:00Z", "deputy": "bob", "person": "root" });
    assert_eq!(request(&endpoints, "PUT", &alice, Some(&for_other)).await.status, 422);
    for method in ["GET", "PUT"] {
        let refused = request(&endpoints, method, &viewer, Some(&absence(60, "bob"))).await;
        assert_eq!(refused.problem(403), "FORBIDDEN");
    }
    endpoints.close().await;
}
