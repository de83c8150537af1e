//! A server with two read-only tools, on stdio, or over HTTP if it is given an address.

use rmcp::{
    ServerHandler, ServiceExt,
    handler::server::{
        router::tool::ToolRouter,
        wrapper::{Json, Parameters},
    },
    model::{ServerCapabilities, ServerConfig},
    schemars, tool, tool_handler, tool_router,
    transport::{
        stdio,
        streamable_http_server::{StreamableHttpService, session::local::LocalSessionManager},
    },
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Add {
    a: i32,
    b: i32,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Sum {
    sum: i32,
}

#[derive(Clone)]
struct Server {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Server {
    fn new() -> Self {
        Self { tool_router: Self::tool_router() }
    }

    #[tool(description = "Adds", annotations(read_only_hint = true))]
    async fn add(&self, Parameters(Add { a, b }): Parameters<Add>) -> Json<Sum> {
        Json(Sum { sum: a.wrapping_add(b) })
    }

    #[tool(description = "Greets", annotations(read_only_hint = true))]
    async fn hello(&self) -> String {
        "hello".to_owned()
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Some(address) = std::env::args().nth(1) else {
        Server::new().serve(stdio()).await?.waiting().await?;
        return Ok(());
    };
    let sessions = LocalSessionManager::default().into();
    let service = StreamableHttpService::new(|| Ok(Server::new()), sessions, Default::default());
    let listener = tokio::net::TcpListener::bind(address).await?;
    Ok(axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await?)
}
