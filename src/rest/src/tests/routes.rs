//! Tests that the routes match their description, and that other paths and methods are refused.

use std::collections::BTreeSet;

use actix_web::test::{TestRequest, call_and_read_body, init_service};

use super::*;
use crate::openapi::description;
use countersign_review::PlanAnnouncement;

#[test]
fn described_routes_equal_served_routes() {
    let document = description::document();
    assert_eq!(document["openapi"], "3.1.0");
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| item.as_object().unwrap().keys().map(move |m| (path.clone(), m.to_uppercase())))
        .collect();
    let routes: BTreeSet<(String, String)> = ROUTES
        .iter()
        .flat_map(|route| {
            route.allow.split(", ").filter(|m| *m != "HEAD").map(|m| (route.path.to_owned(), m.to_owned()))
        })
        .collect();
    assert_eq!(described, routes);
    for (path, method) in described {
        let route = ROUTES.iter().find(|route| route.path == path).unwrap();
        let parameters = document["paths"][&path][method.to_lowercase()]["parameters"].as_array();
        let has_query = parameters.into_iter().flatten().any(|parameter| parameter["in"] == "query");
        assert_eq!(route.reads_query(&method), has_query, "{method} {path}");
    }
}

#[test]
fn every_reference_in_description_resolves() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|v| references(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, found)),
            _ => {}
        }
    }
    let document = description::document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

#[test]
fn every_event_type_is_described() {
    let document = description::document();
    let schema_of = |reference: &Value| document.pointer(reference["$ref"].as_str().unwrap().trim_start_matches('#'));
    let variants = document["components"]["schemas"]["FeedEvent"]["oneOf"].as_array().unwrap();
    let types: Vec<jsonschema::Validator> = variants
        .iter()
        .map(|variant| jsonschema::validator_for(&schema_of(variant).unwrap()["properties"]["type"]).unwrap())
        .collect();
    for event_type in countersign_domain::webhooks::event::event_types() {
        assert!(types.iter().any(|schema| schema.is_valid(&json!(event_type))), "{event_type} is not described");
    }
}

#[actix::test]
async fn responses_match_the_description() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let change = endpoints.propose_by("ci").await;
    let path = format!("/api/changes/{}/decision", change.id);
    endpoints.post(&path, &key, &decision("approve", &change)).await;
    endpoints.wait_for_state(&change.id, ChangeState::Applied).await;
    let document = description::document();
    let check = |schema: &str, instance: &Value| {
        let mut root =
            json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "components": document["components"] });
        root["$ref"] = format!("#/components/schemas/{schema}").into();
        let validator = jsonschema::validator_for(&root).unwrap();
        let errors: Vec<_> = validator.iter_errors(instance).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{schema}: {errors:#?}");
        // A member that is not described means that the description is outdated.
        let known = &document["components"]["schemas"][schema]["properties"];
        if schema == "Problem" {
            return; // Problems also have members that depend on the kind of the error.
        }
        for member in instance.as_object().unwrap().keys() {
            assert!(known.get(member).is_some(), "{schema} does not describe {member}");
        }
    };
    check("ChangePage", &endpoints.get("/api/changes", &key).await.json());
    check("Change", &endpoints.get(&format!("/api/changes/{}", change.id), &key).await.json());
    let step = |last: bool| {
        let announcement = PlanAnnouncement { id: "plan_1".into(), title: "Move".into(), last };
        let arguments = RawValue::from_string("{}".into()).unwrap();
        let preview = endpoints.provider.current_preview(&arguments);
        let proposal = proposal(proposer("ci"), (endpoints.provider.name, "write"), arguments, preview);
        endpoints.changes.propose_step(proposal, announcement)
    };
    step(false).await.unwrap();
    step(true).await.unwrap();
    check("Plan", &endpoints.get("/api/plans/plan_1", &key).await.json());
    endpoints.propose_by("ci").await;
    endpoints.propose_by("ci").await;
    let bundles = endpoints.get("/api/bundles", &key).await.json();
    check("BundleList", &bundles);
    let path = format!("/api/bundles/{}", bundles["bundles"][0]["id"].as_str().unwrap());
    check("BundleContent", &endpoints.get(&path, &key).await.json());
    check("AuditPage", &endpoints.get("/api/audit", &key).await.json());
    check("Me", &endpoints.get("/api/me", &key).await.json());
    check("AbsenceState", &endpoints.get("/api/account/absence", &key).await.json());
    check("Overview", &endpoints.get("/api/overview?range=30d", &key).await.json());
    check("FirstSteps", &endpoints.get("/api/first-steps", &key).await.json());
    let admin = endpoints.key("root", Role::Admin);
    check("KeyList", &endpoints.get("/api/keys", &admin).await.json());
    check("CreatedKey", &endpoints.post("/api/keys", &admin, &json!({ "name": "desk" })).await.json());
    check("Session", &endpoints.get("/api/sessions", &key).await.json()["sessions"][0]);
    check("Provider", &endpoints.get("/api/servers", &key).await.json()["servers"][0]);
    check("ServerFile", &endpoints.get("/api/server-file", &key).await.json());
    check("Trials", &endpoints.get("/api/server-trials", &key).await.json());
    let deny = json!({ "verdict": "deny", "arguments": "exact", "principal": "same", "comment": "no" });
    let rule = endpoints.post(&format!("/api/changes/{}/rule", change.id), &key, &deny).await.json();
    check("StandingRule", &rule);
    check("Rules", &endpoints.get("/api/rules", &key).await.json());
    let suggestions = format!("/api/changes/{}/suggestions", change.id);
    check("SuggestionList", &endpoints.get(&suggestions, &key).await.json());
    endpoints.offer_write();
    check("PolicyTest", &endpoints.post("/api/policy/test", &key, &json!({ "tool": "write" })).await.json());
    check("PolicyFile", &endpoints.get("/api/policy/file", &key).await.json());
    check("PolicyInForce", &endpoints.get("/api/policy", &key).await.json());
    let call = json!({ "server": "pretend", "tool": "write" });
    check("PreviewTest", &endpoints.post("/api/previews/test", &key, &call).await.json());
    check("Reload", &endpoints.get("/api/reload", &key).await.json());
    endpoints.configure("policy: { default: allow }\nlimits: { max_batch: 9 }\n").await;
    let reload = endpoints.get("/api/reload", &key).await.json();
    check("Reload", &reload);
    check("ReloadWaiting", &reload["waiting"]);
    check("ReloadOutcome", &reload["last"]);
    check("ConfigDiff", &reload["last"]["changes"]);
    endpoints.configure("policy: { default: nobody }\n").await;
    let reload = endpoints.get("/api/reload", &key).await.json();
    check("ConfigProblem", &reload["last"]["problems"][0]);
    check("Problem", &endpoints.post(&path, &key, &decision("approve", &change)).await.json());
    let event = endpoints.changes.feed().subscribe(Some(0)).unwrap().next().await.unwrap();
    check("ChangeEvent", &serde_json::from_slice(&event.json).unwrap());
    endpoints.close().await;
}

#[actix::test]
async fn name_in_path_is_decoded_once() {
    let name = web::get().to(|request: HttpRequest| async move { path_name(&request) });
    let app = init_service(App::new().route("/{name}/tools", name)).await;
    for (segment, expected) in [
        ("io.github.user%2fweather", "io.github.user/weather"),
        ("50%25%2B", "50%+"),
        ("50%2525", "50%25"),
        ("%252F", "%2F"),
        ("a+b%20%C3%BC", "a+b ü"),
    ] {
        let request = TestRequest::with_uri(&format!("/{segment}/tools")).to_request();
        assert_eq!(call_and_read_body(&app, request).await, expected);
    }
}

#[actix::test]
async fn described_query_parameters_are_accepted() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    for (path, item) in description::document()["paths"].as_object().unwrap() {
        let parameters = item["get"]["parameters"].as_array().into_iter().flatten();
        let names: Vec<&str> =
            parameters.filter(|parameter| parameter["in"] == "query").map(|p| p["name"].as_str().unwrap()).collect();
        if names.is_empty() || path.ends_with("/events") {
            continue;
        }
        let path = format!("{}?{}=", path.replace("{name}", "pretend"), names.join("=&"));
        let status = endpoints.get(&path, &key).await.status;
        assert!(matches!(status, 200 | 302 | 404), "{path}: {status}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn query_of_endpoint_without_parameters_is_refused() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Admin);
    let authorization = format!("Bearer {key}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    for route in ROUTES {
        let path = format!("{}?preview=true", route.path.replace("{id}", "chg_x").replace("{name}", "pretend"));
        for method in route.allow.split(", ").filter(|m| *m != "HEAD") {
            if route.reads_query(method) {
                continue;
            }
            let reply = endpoints.send(method, &path, &headers, Some("{}")).await;
            assert_eq!(reply.problem(400), "INVALID_PARAMS", "{method} {path}");
            assert!(reply.text.contains("unknown parameter preview; known: none"), "{method} {path}: {reply:?}");
        }
    }
    endpoints.close().await;
}

#[actix::test]
async fn refusals_of_every_operation_are_described() {
    let endpoints = Endpoints::open().await;
    let document = description::document();
    let foreign = [("Origin", "https://evil.example")];
    let wrong_key = format!("Bearer csk_{}", "0".repeat(43));
    let wrong_key = [("Authorization", wrong_key.as_str())];
    for route in ROUTES {
        let path = route.path.replace("{id}", "chg_x").replace("{name}", "pretend");
        for method in route.allow.split(", ").filter(|m| *m != "HEAD") {
            let operation = &document["paths"][route.path][method.to_lowercase()];
            let check = |reply: Reply, status: u16| {
                assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
                assert!(operation["responses"].get(status.to_string()).is_some(), "{method} {path}: {status}");
            };
            check(endpoints.send(method, &format!("{path}?access_token=x"), &[], None).await, 400);
            check(endpoints.send(method, &path, &foreign, None).await, 403);
            if operation.get("security").is_some() {
                continue;
            }
            // The limit of failed attempts recovers with time.
            let mut reply = endpoints.send(method, &path, &wrong_key, None).await;
            while reply.status == 401 {
                reply = endpoints.send(method, &path, &wrong_key, None).await;
            }
            assert!(reply.header("retry-after").is_some(), "{method} {path}: {reply:?}");
            check(reply, 429);
        }
    }
    endpoints.close().await;
}

#[actix::test]
async fn unknown_method_or_path_is_problem() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    let authorization = format!("Bearer {key}");
    let headers = [("Authorization", authorization.as_str())];
    for route in ROUTES {
        let path = format!("{}?limit=1", route.path.replace("{id}", "chg_x").replace("{name}", "pretend"));
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
            if route.allow.split(", ").any(|m| m == method) {
                continue;
            }
            let reply = endpoints.send(method, &path, &headers, None).await;
            assert_eq!((reply.status, reply.header("allow")), (405, Some(route.allow)), "{method} {path}");
            if method != "HEAD" {
                assert_eq!(reply.problem(405), "INVALID_REQUEST");
            }
        }
    }
    for path in
        ["/api", "/api/", "/api/nothing", "/api/changes/", "/api/changes/a/b", "/api/Changes", "/nothing", "/api/%ff"]
    {
        assert_eq!(endpoints.get(path, &key).await.problem(404), "NOT_FOUND", "{path}");
    }
    endpoints.close().await;
}
