//! Tests against a server with fixed responses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_util::sync::CancellationToken;

use super::*;
use countersign_config::{ModelEndpoint, Secret};

type Answers = Arc<dyn Fn(usize, &str, &Value) -> Option<String> + Send + Sync>;

/// Starts a server that counts its requests.
async fn serve(
    answers: impl Fn(usize, &str, &Value) -> Option<String> + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let (answers, counted): (Answers, _) = (Arc::new(answers), Arc::clone(&count));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (answers, counted) = (Arc::clone(&answers), Arc::clone(&counted));
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                let mut buffer = [0; 4096];
                loop {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let complete_request = text.split_once("\r\n\r\n").and_then(|(head, body)| {
                        let length = head.lines().find_map(|line| {
                            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok()
                        })?;
                        (body.len() >= length).then(|| (head.to_owned(), body.to_owned()))
                    });
                    if let Some((head, body)) = complete_request {
                        let number = counted.fetch_add(1, Ordering::SeqCst);
                        let body = serde_json::from_str(&body).unwrap();
                        match answers(number, &head, &body) {
                            Some(answer) => socket.write_all(answer.as_bytes()).await.unwrap_or_default(),
                            None => std::future::pending().await,
                        }
                        return;
                    }
                    match socket.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                    }
                }
            });
        }
    });
    (url, count)
}

pub(crate) fn status(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn vectors(body: &Value) -> String {
    let inputs = body["input"].as_array().unwrap();
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .rev()
        .map(|(position, text)| json!({ "index": position, "embedding": [text.as_str().unwrap().len(), 1.0] }))
        .collect();
    status("200 OK", "", &json!({ "data": data }).to_string())
}

fn endpoint(url: &str, model: &str) -> ModelEndpoint {
    let key = Some(Secret("very-secret".to_owned()));
    ModelEndpoint { url: url.to_owned(), model: model.to_owned(), key, timeout: Duration::from_secs(60) }
}

/// A model that answers as a test wants, with the file for the vectors of its embedder.
pub(crate) struct ModelServer {
    dir: tempfile::TempDir,
    url: String,
    requests: Arc<AtomicUsize>,
}

impl ModelServer {
    pub(crate) async fn new(answers: impl Fn(usize, &str, &Value) -> Option<String> + Send + Sync + 'static) -> Self {
        let (url, requests) = serve(answers).await;
        Self { dir: tempfile::tempdir().unwrap(), url, requests }
    }

    pub(crate) fn embedder(&self, model: &str) -> Arc<Embedder> {
        Embedder::new(&endpoint(&self.url, model), &self.dir.path().join("v.db")).unwrap()
    }

    fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|position| "x".repeat(position + 1)).collect()
}

#[actix::test]
async fn passages_are_embedded_in_batches_and_cached() {
    let bench = ModelServer::new(|_, head, body| {
        assert!(head.starts_with("POST /v1/embeddings ") && head.contains("Bearer very-secret"), "{head}");
        Some(vectors(body))
    })
    .await;
    let embedder = bench.embedder("m");
    let got = embedder.embed_passages(&texts(70)).await.unwrap();
    assert_eq!(got.iter().map(|vector| vector[0]).collect::<Vec<_>>(), (1..=70_u8).map(f32::from).collect::<Vec<_>>());
    assert_eq!(bench.request_count(), 3);
    assert_eq!(embedder.embed_passages(&texts(70)).await.unwrap(), got);
    drop(embedder);
    // The cache survives a restart, and is separate for another model.
    assert_eq!(bench.embedder("m").embed_passages(&texts(71)).await.unwrap()[..70], got);
    assert_eq!(bench.request_count(), 4);
    bench.embedder("other").embed_passages(&texts(1)).await.unwrap();
    assert_eq!(bench.request_count(), 5);
}

#[actix::test]
async fn queries_and_passages_get_the_models_prefixes() {
    let bench = ModelServer::new(|_, _, body| Some(vectors(body))).await;
    let embedder = bench.embedder("multilingual-e5-small");
    assert_eq!(embedder.embed_query("ab").await.unwrap()[0], "query: ab".len() as f32);
    assert_eq!(embedder.embed_passages(&["ab".to_owned()]).await.unwrap()[0][0], "passage: ab".len() as f32);
}

#[actix::test]
async fn transient_failures_are_retried_once() {
    let bench = ModelServer::new(|number, _, body| match number {
        0 => Some(status("503 Service Unavailable", "", "busy")),
        _ => Some(vectors(body)),
    })
    .await;
    assert!(bench.embedder("m").embed_query("a").await.is_ok());
    assert_eq!(bench.request_count(), 2);
    let bench = ModelServer::new(|_, _, _| Some(status("500 Internal Server Error", "", ""))).await;
    assert!(bench.embedder("m").embed_query("a").await.is_err());
    assert_eq!(bench.request_count(), 2);
    for line in ["401 Unauthorized", "429 Too Many Requests"] {
        let bench = ModelServer::new(|_, _, _| Some(status(line, "", "no such key: \u{1b}[31mvery"))).await;
        let error = bench.embedder("m").embed_query("a").await.unwrap_err();
        assert_eq!(bench.request_count(), 1, "{line}");
        assert!(error.to_string().contains(&line[..3]) && !error.to_string().contains('\u{1b}'), "{error}");
    }
}

#[actix::test]
async fn invalid_response_error_hides_the_key() {
    let huge = format!("{{\"data\":[{}]}}", "1,".repeat(400_000));
    let answers = [
        status("200 OK", "", "no JSON"),
        status("200 OK", "", "{\"data\":[]}"),
        status("200 OK", "", &huge),
        status("302 Found", "location: http://127.0.0.1:1/v1/embeddings\r\n", ""),
        "HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n{".to_owned(),
        format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)),
        "rubbish\r\n\r\n".to_owned(),
        String::new(),
    ];
    for answer in answers {
        let (shown_answer, given) = (answer.clone(), answer.clone());
        let bench = ModelServer::new(move |_, _, _| Some(given.clone())).await;
        let error = bench.embedder("m").embed_query("a").await.expect_err(&shown_answer[..shown_answer.len().min(60)]);
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("very-secret") && shown.len() < 1000, "{shown}");
    }
}

#[actix::test]
async fn agents_see_the_status_but_not_the_response() {
    for (line, body, agent_message) in [
        ("401 Unauthorized", "bad key: Bearer very-secret", "it answered with the status 401"),
        ("200 OK", "{\"data\": \"very-secret\"}", "its answer is not what was asked for"),
    ] {
        let answer = status(line, "", body);
        let bench = ModelServer::new(move |_, _, _| Some(answer.clone())).await;
        let error = bench.embedder("m").embed_query("a").await.unwrap_err();
        assert_eq!(error.agent_message(), agent_message);
    }
}

#[actix::test]
async fn silent_server_times_out_and_absent_one_is_unreachable() {
    let bench = ModelServer::new(|_, _, _| None).await;
    let mut slow = endpoint(&bench.url, "m");
    // Long enough for the request to arrive.
    slow.timeout = Duration::from_secs(1);
    let embedder = Embedder::new(&slow, &bench.dir.path().join("v.db")).unwrap();
    assert_eq!(embedder.embed_query("a").await, Err(RemoteError::TimedOut(slow.timeout)));
    assert_eq!(bench.request_count(), 1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let embedder = Embedder::new(&endpoint(&url, "m"), &bench.dir.path().join("w.db")).unwrap();
    assert!(matches!(embedder.embed_query("a").await, Err(RemoteError::Unreachable(_))));
}

#[actix::test]
async fn answer_is_the_models_text() {
    let bench = ModelServer::new(|number, head, body| {
        assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
        assert_eq!(body["messages"][1]["content"], "question");
        let content = ["It is so [1].", "", " "][number.min(2)];
        Some(status(
            "200 OK",
            "",
            &json!({ "choices": [{ "message": { "role": "assistant", "content": content } }] }).to_string(),
        ))
    })
    .await;
    let generator = Generator::new(&endpoint(&bench.url, "m"));
    let never = CancellationToken::new();
    assert_eq!(generator.answer("rules", "question", &never).await.unwrap(), "It is so [1].");
    assert!(matches!(generator.answer("rules", "question", &never).await, Err(RemoteError::InvalidResponse(_))));
    never.cancel();
    let silent = ModelServer::new(|_, _, _| None).await;
    let generator = Generator::new(&endpoint(&silent.url, "m"));
    assert_eq!(generator.answer("rules", "question", &never).await, Err(RemoteError::Cancelled));
}
