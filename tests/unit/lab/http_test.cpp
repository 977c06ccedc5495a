// The page's server, and the client that fetches counters.
#include "lab/watch/http.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lab/error.hpp"

#if KVTWIN_TEST_HTTP
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/free_port.hpp"
#endif

namespace kvtwin {
namespace {

TEST(HttpAddress, LoopbackAndOthers) {
  for (const char* text : {"127.0.0.1:1", "localhost:65535", "[::1]:80", "127.9.8.7:0"}) {
    EXPECT_TRUE(HttpAddress::parse(text, "--serve").is_loopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "10.0.0.1:2", "example.com:80", "127.evil.com:80", "[::]:80"}) {
    EXPECT_FALSE(HttpAddress::parse(text, "--serve").is_loopback()) << text;
  }
  for (const char* text : {"", "127.0.0.1", ":80", "a:b", "a:-1", "a:65536", "a b:1", "a/b:1", "u@h:1", "a:1x"}) {
    EXPECT_THROW(HttpAddress::parse(text, "--serve"), InputError) << text;
  }
  EXPECT_THROW(check_http_url("https://127.0.0.1/metrics", "--metrics"), InputError);
  EXPECT_THROW(check_http_url("127.0.0.1:8000", "--metrics"), InputError);
}

#if KVTWIN_TEST_HTTP

int connected_to(const HttpServer& server) {
  const std::string url = server.url();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return client;
}

// `is_all`: says that no more comes, so that a server does not wait for the rest of a request.
std::string answer_to(const HttpServer& server, const std::string& request, bool is_all) {
  const int client = connected_to(server);
  EXPECT_EQ(send(client, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  if (is_all) shutdown(client, SHUT_WR);
  std::string answer;
  char bytes[4096];
  for (ssize_t got = 0; (got = recv(client, bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<std::size_t>(got));
  close(client);
  return answer;
}

int status_of(const HttpServer& server, const std::string& line, const std::string& headers = "Host: localhost\r\n") {
  const std::string answer = answer_to(server, line + " HTTP/1.1\r\n" + headers + "Connection: close\r\n\r\n", false);
  return answer.size() < 12 ? 0 : std::stoi(answer.substr(9, 3));
}

// A socket that listens and answers nothing.
class Listening {
 public:
  Listening() { EXPECT_EQ(listen(port_.socket(), 1), 0); }
  int accepted() const { return accept(port_.socket(), nullptr, nullptr); }
  // A thread in accepted() then returns.
  void end() const { shutdown(port_.socket(), SHUT_RDWR); }

 private:
  const test::FreePort port_;

 public:
  const std::string url = "http://127.0.0.1:" + std::to_string(port_.number()) + "/metrics";
};

TEST(HttpGet, EndsAtOnceIfThePageIsNoLongerWanted) {
  const Listening silent;
  std::string why;
  EXPECT_EQ(http_get(silent.url, why, [] { return false; }), std::nullopt);
  EXPECT_EQ(why, "is no longer wanted");
}

TEST(HttpGet, EndsAPageThatIsNotCompleted) {
  const Listening server;
  std::thread slow([&] {
    const int client = server.accepted();
    const std::string half = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    send(client, half.data(), half.size(), MSG_NOSIGNAL);
    char bytes[512];
    while (recv(client, bytes, sizeof bytes, 0) > 0) {  // until the client ends the connection
    }
    close(client);
  });
  std::string why;
  EXPECT_EQ(http_get(
                server.url, why, [] { return true; }, std::chrono::milliseconds(0)),
            std::nullopt);
  EXPECT_EQ(why, "takes longer than 0 s");
  server.end();  // the client may have given up before it connected
  slow.join();
}

// A server that sends something else, and never ends.
TEST(HttpGet, TrustsNoAnswer) {
  for (const auto& [answer, reason] :
       {std::pair<std::string, const char*>{std::string(100'000, 'A'), "its header has more than 64 KiB"},
        {"HTTP/1.1 " + std::string(100'000, '2'), "its header has more than 64 KiB"},
        {"HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'), "its header has more than 64 KiB"},
        {"\r\n\r\n", "is no HTTP answer"},
        {"HTTP/1.1 404 No\r\n\r\n", "answers 404"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "in chunks"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "has more than 16 MiB"}}) {
    const Listening server;
    std::thread hostile([&server, first = answer] {
      const int client = server.accepted();
      for (std::string more = first; send(client, more.data(), more.size(), MSG_NOSIGNAL) > 0;) {
        more.assign(100'000, 'x');
      }
      close(client);
    });
    std::string why;
    EXPECT_EQ(http_get(server.url, why), std::nullopt);
    EXPECT_NE(why.find(reason), std::string::npos) << why;
    server.end();
    hostile.join();
  }
}

TEST(HttpServer, ReadOnlyAndForThisMachine) {
  HttpServer server({"127.0.0.1", 0}, "");
  server.put("/", "text/plain", "hello");
  std::string why;
  EXPECT_EQ(http_get(server.url(), why), "hello") << why;
  EXPECT_EQ(http_get(server.url() + "other", why), std::nullopt);
  EXPECT_EQ(why, "answers 404");
  server.put("/", "text/plain", "later");
  EXPECT_EQ(http_get(server.url(), why), "later");
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
    EXPECT_EQ(status_of(server, std::string(method) + " /"), 405) << method;
  }
  EXPECT_EQ(status_of(server, "GET /", "Host: 127.0.0.1:80\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: [::1]\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: evil.example\r\n"), 403) << "a name that another site lets point here";
  EXPECT_EQ(status_of(server, "GET /", ""), 403);
  const std::string answer = answer_to(server, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", false);
  EXPECT_NE(answer.find("default-src 'none'"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("Access-Control-Allow-Origin"), std::string::npos);
}

TEST(HttpServer, HostileRequestsDoNotEndIt) {
  HttpServer server({"127.0.0.1", 0}, "");
  server.put("/", "text/plain", "hello");
  for (const std::string& request :
       {std::string("\0\1\2", 3), std::string("GET"), std::string(100'000, 'A'), std::string("GET / HTTP/9\r\n\r\n"),
        "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
        std::string("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: localhost\r\n" + std::string(9000, 'h') + ": x\r\n\r\n",
        std::string("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx"),
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1,9999999999999999999999-\r\n\r\n"),
        std::string("GET /%zz%00 HTTP/1.1\r\nHost: localhost\r\n\r\n")}) {
    const std::string answer = answer_to(server, request, true);
    EXPECT_EQ(answer.find("root:"), std::string::npos);
  }
  std::string why;
  EXPECT_EQ(http_get(server.url(), why), "hello") << why;
}

TEST(HttpServer, EndsAtOnceWhateverItsClientsDo) {
  constexpr std::chrono::hours kForever{1000};
  auto server = std::make_unique<HttpServer>(HttpAddress{"127.0.0.1", 0}, "", kForever);
  server->put("/", "text/plain", std::string(std::size_t{32} << 20, 'x'));
  std::vector<int> clients;
  // More than are served at once.
  for (const char* const part :
       {"G", "G", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET / HTTP/1.1\r\nX", "", "G"}) {
    clients.push_back(connected_to(*server));
    send(clients.back(), part, std::strlen(part), MSG_NOSIGNAL);
  }
  server.reset();
  for (const int client : clients) close(client);
}

TEST(HttpServer, ARequestThatComesByteAfterByteIsDropped) {
  const HttpServer server({"127.0.0.1", 0}, "", std::chrono::milliseconds(1));
  const int client = connected_to(server);
  while (send(client, "G", 1, MSG_NOSIGNAL) == 1) {
  }
  close(client);
}

TEST(HttpServer, ARequestHasALargestSize) {
  const HttpServer server({"127.0.0.1", 0}, "", std::chrono::hours(1000));
  const int client = connected_to(server);
  const std::string header = "X-Y: z\r\n";
  send(client, "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
  while (send(client, header.data(), header.size(), MSG_NOSIGNAL) > 0) {
  }
  close(client);
}

TEST(HttpServer, ATokenIsNeededForOtherMachines) {
  EXPECT_THROW(HttpServer({"0.0.0.0", 0}, ""), InputError);
  EXPECT_THROW(HttpServer({"0.0.0.0", 0}, "short"), InputError);
  const std::string token = "0123456789abcdef";
  HttpServer server({"127.0.0.1", 0}, token);
  server.put("/", "text/plain", "hello");
  EXPECT_EQ(status_of(server, "GET /"), 401);
  EXPECT_EQ(status_of(server, "GET /?token=0123456789abcdeg"), 401);
  EXPECT_EQ(status_of(server, "GET /?token=" + token), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: localhost\r\nAuthorization: Bearer " + token + "\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /", "Host: localhost\r\nAuthorization: Bearer x" + token + "\r\n"), 401);
  const HttpServer second({"127.0.0.1", 0}, "");
  const std::string url = second.url();
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  EXPECT_THROW(HttpServer({"127.0.0.1", port}, ""), InputError);
}

#endif

}  // namespace
}  // namespace kvtwin
