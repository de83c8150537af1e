//! Tests of the end of a gateway.

use actix_web::{App, HttpResponse, HttpServer, web};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
};

use super::*;
use countersign_config::load;

/// The maximum time to wait for something that must happen.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Handles a message to a stateless server whose only tool never answers. Each call adds a permit to `calls`.
async fn answer_as_server(message: web::Json<Value>, calls: web::Data<Semaphore>) -> HttpResponse {
    let mut result = match message["method"].as_str() {
        Some("server/discover") => json!({ "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} } }),
        Some("tools/list") => json!({ "tools": [{ "name": "hang", "inputSchema": { "type": "object" } }] }),
        Some("tools/call") => {
            calls.add_permits(1);
            return std::future::pending().await;
        }
        _ => {
            let error = json!({ "code": -32601, "message": "Method not found" });
            return HttpResponse::NotFound().json(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        }
    };
    (result["resultType"], result["ttlMs"], result["cacheScope"]) = ("complete".into(), 60_000.into(), "public".into());
    HttpResponse::Ok().json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
}

/// Returns a call of the server's tool.
fn hanging_call() -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": "slow__hang", "arguments": {}, "_meta": meta });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

/// Starts a gateway with its data in `folder`, in front of a server at this URL.
async fn start_gateway(folder: &std::path::Path, server_url: &str) -> RunningGateway {
    let server = json!({ "slow": { "url": server_url } });
    let config = json!({
        "listen": "127.0.0.1:0", "policy": { "default": "allow" }, "limits": { "drain": "0s" }, "mcpServers": server,
    });
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("c.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let flags = Flags { config: Some(file), data: Some(folder.to_owned()), ..Flags::default() };
    let source = ConfigSource { flags, ..ConfigSource::default() };
    let loaded = load(&source.flags, &source.env).unwrap();
    start(loaded, source, Options::default(), Metrics::install().unwrap()).await.unwrap()
}

#[actix::test]
async fn running_calls_are_answered_before_sessions_end() {
    let calls = web::Data::new(Semaphore::new(0));
    let counted = web::Data::clone(&calls);
    let handler = move || App::new().app_data(web::Data::clone(&counted)).default_service(web::to(answer_as_server));
    let server = HttpServer::new(handler).workers(1).disable_signals().bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/mcp", server.addrs()[0]);
    actix::spawn(server.run());
    let folder = std::env::temp_dir().join(format!("countersign-app-{}", std::process::id()));
    let gateway = start_gateway(&folder, &url).await;

    let endpoint = Arc::clone(&gateway.endpoint);
    let identity = endpoint.sessions.authenticator.identify_local_process().unwrap();
    let (mut attached, io) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(io);
    actix::spawn(lines::serve(Arc::clone(&endpoint), identity, reader, writer));
    let body = hanging_call();
    attached.write_all(format!("{body}\n").as_bytes()).await.unwrap();

    let address = endpoint.server.reviews.address.listen_address();
    let mut http = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: application/json\r\n\
         mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: slow__hang\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    http.write_all(format!("{head}{body}").as_bytes()).await.unwrap();

    let (mut to_attached, mut to_http) = (String::new(), String::new());
    let ended = async {
        calls.acquire_many(2).await.unwrap().forget();
        gateway.shut_down().await;
        attached.read_to_string(&mut to_attached).await.unwrap();
        http.read_to_string(&mut to_http).await.unwrap();
    };
    tokio::time::timeout(MAX_WAIT, ended).await.unwrap();
    for answer in [to_attached, to_http] {
        assert!(answer.contains("UPSTREAM_UNAVAILABLE") && answer.contains("the gateway ended it"), "{answer}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
