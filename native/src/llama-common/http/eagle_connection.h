// Connections of llama.cpp's server: clients of HTTP/1.0, clients that close their side behind a request, and several
// requests in one write.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpp-httplib/httplib.h"
#include "eagle_access.h"
#include "eagle_errors.h"
#include "log.h"

namespace httplib {
namespace detail {  // functions of the library that its header does not declare
bool keep_alive(const std::atomic<socket_t> & server, socket_t socket, time_t seconds);
ssize_t select_read(socket_t socket, time_t seconds, time_t microseconds);
ssize_t select_write(socket_t socket, time_t seconds, time_t microseconds);
void get_remote_ip_and_port(socket_t socket, std::string & ip, int & port);
void get_local_ip_and_port(socket_t socket, std::string & ip, int & port);
void drain_and_close_socket(socket_t socket) noexcept;
}  // namespace detail
}  // namespace httplib

// Client of one request. Both a client that has gone and one that only closes its side, as `nc -N` does, end their
// data. Only data for them shows the difference: the first resets the connection. So a probe is sent, which clients
// skip: an interim response (RFC 9110, section 15.2), or a comment in a stream of events.
class eagle_client {
  public:
    // probe: empty for a client of HTTP/1.0, which knows no interim responses.
    eagle_client(socket_t socket, const std::string & probe) : socket_(socket), probe_(probe) {}

    // comment: the probe from now on; if it is empty, only parts of the answer show whether the client has gone.
    void begin_answer(const std::string & comment = "") {
        const std::lock_guard<std::mutex> lock(mutex_);
        has_begun_ = true;
        probe_ = comment;
    }

    // Once true, it stays so: the server relies on it.
    bool has_gone() {
        const std::lock_guard<std::mutex> lock(mutex_);
        is_gone_ = is_gone_ || is_seen_gone();
        return is_gone_;
    }

  private:
    bool is_seen_gone() {
        pollfd events = {};
        events.fd = socket_;
        events.events = POLLIN;
#ifdef _WIN32
        const int n = ::WSAPoll(&events, 1, 0);
#else
        const int n = ::poll(&events, 1, 0);
#endif
        if (n <= 0) {
            return false;
        }
        char next;  // on macOS and Windows, POLLHUP is also the end of the client's data
        const bool is_reset = (events.revents & (POLLERR | POLLNVAL)) != 0;
        const ssize_t n_read = is_reset ? -1 : httplib::detail::read_socket(socket_, &next, 1, MSG_PEEK);
        return n_read < 0 || (n_read == 0 && !is_reading());
    }

    // Returns true if a client that has closed its side may be reading.
    bool is_reading() {
        const auto now = std::chrono::steady_clock::now();
        if (probe_.empty()) {
            return has_begun_;
        }
        if (now >= next_probe_) {  // again and again: a tunnel in between may learn only later that the client has gone
            next_probe_ = now + std::chrono::seconds(2);
            return httplib::detail::send_socket(socket_, probe_.data(), probe_.size(), CPPHTTPLIB_SEND_FLAGS) ==
                   (ssize_t) probe_.size();
        }
        return true;
    }

    const socket_t socket_;
    std::string probe_;
    bool has_begun_ = false;
    bool is_gone_ = false;
    std::chrono::steady_clock::time_point next_probe_;
    std::mutex mutex_;
};

// Stream of a connection. The library's own begins anew with each request, and so loses the next one if it has been
// read with the last.
class eagle_connection final : public httplib::Stream {
  public:
    std::shared_ptr<eagle_client> client;
    httplib::Request * request = nullptr;  // the one that is answered
    bool is_last = false;                  // the response says that the connection closes

    // Timeouts in seconds.
    eagle_connection(socket_t socket, time_t read_timeout, time_t write_timeout)
        : socket_(socket), read_timeout_(read_timeout), write_timeout_(write_timeout) {
        set_request(nullptr);
    }

    // A thread that outlives the answer must not write to the socket, whose number may then be another client's.
    ~eagle_connection() override { client->begin_answer(); }

    // given: nullptr before it is read.
    void set_request(httplib::Request * given) {
        if (client) {
            client->begin_answer();
        }
        request = given;
        const bool knows_interim = given != nullptr && given->version != "HTTP/1.0";
        client = std::make_shared<eagle_client>(socket_, knows_interim ? "HTTP/1.1 100 Continue\r\n\r\n" : "");
    }

    bool is_readable() const override { return at_ < end_; }
    bool wait_readable() const override { return httplib::detail::select_read(socket_, read_timeout_, 0) > 0; }
    bool wait_writable() const override { return httplib::detail::select_write(socket_, write_timeout_, 0) > 0; }
    bool is_peer_alive() const override { return !client->has_gone(); }

    // Skips line breaks, which some clients send behind a body (RFC 9112, section 2.2). Returns false if the client has
    // ended its data.
    bool skip_lines() {
        const bool is_open = is_readable() || fill() > 0;
        while (is_readable() && (buffer_[at_] == '\r' || buffer_[at_] == '\n')) {
            at_++;
        }
        return is_open;
    }

    // Returns true if the client speaks TLS, whose first record is a handshake.
    bool begins_tls() const { return is_readable() && buffer_[at_] == 22; }

    ssize_t read(char * to, size_t size) override {
        if (!is_readable() && size >= buffer_.size()) {
            return receive(to, size);
        }
        if (const ssize_t n = is_readable() ? 1 : fill(); n <= 0) {
            return n;
        }
        const size_t n = std::min(size, end_ - at_);
        std::memcpy(to, buffer_.data() + at_, n);
        at_ += n;
        return (ssize_t) n;
    }

    ssize_t write(const char * from, size_t size) override {
        return wait_writable() ? httplib::detail::send_socket(socket_, from, size, CPPHTTPLIB_SEND_FLAGS) : -1;
    }

    void get_remote_ip_and_port(std::string & ip, int & port) const override {
        httplib::detail::get_remote_ip_and_port(socket_, ip, port);
    }
    void get_local_ip_and_port(std::string & ip, int & port) const override {
        httplib::detail::get_local_ip_and_port(socket_, ip, port);
    }
    socket_t socket() const override { return socket_; }
    time_t duration() const override { return 0; }
    const char * buffered_data(size_t & size) const override {
        size = end_ - at_;
        return size ? buffer_.data() + at_ : nullptr;
    }
    void consume_buffered(size_t size) override { at_ += size; }

  private:
    ssize_t fill() {
        const ssize_t n = receive(buffer_.data(), buffer_.size());
        at_ = 0;
        end_ = (size_t) std::max<ssize_t>(n, 0);
        return n;
    }

    ssize_t receive(char * to, size_t size) {
        if (!wait_readable()) {
            error_ = httplib::Error::Timeout;
            return -1;
        }
        const ssize_t n = httplib::detail::read_socket(socket_, to, size, CPPHTTPLIB_RECV_FLAGS);
        if (n <= 0) {
            error_ = n == 0 ? httplib::Error::ConnectionClosed : httplib::Error::Read;
        }
        return n;
    }

    const socket_t socket_;
    const time_t read_timeout_;
    const time_t write_timeout_;
    std::vector<char> buffer_ = std::vector<char>(4096);
    size_t at_ = 0;
    size_t end_ = 0;
};

class eagle_http_server final : public httplib::Server {
  public:
    eagle_http_server() {
        set_pre_request_handler([](const httplib::Request &, httplib::Response & response) {
            const auto client = current()->client;
            current()->request->is_connection_closed = [client] { return client->has_gone(); };
            return eagle_can_answer(response) ? HandlerResponse::Unhandled : HandlerResponse::Handled;
        });
        set_post_routing_handler([](const httplib::Request & request, httplib::Response & response) {
            if (request.version == "HTTP/1.0") {
                const bool is_empty = response.body.empty() && !response.content_provider_;
                if (request.method == "POST" && is_empty && current()->client->has_gone()) {
                    explain_end(request, response);
                }
                set_old_headers(request, response);
            }
            current()->is_last = httplib::detail::has_header_token(response.headers, "Connection", "close");
            current()->client->begin_answer(comment_of(response));
        });
    }

  private:
    // Connection that this thread serves.
    static eagle_connection *& current() {
        static thread_local eagle_connection * connection = nullptr;
        return connection;
    }

    // Returns what may be sent between the parts of a stream of events; empty for other responses.
    static std::string comment_of(const httplib::Response & response) {
        const std::string type = "text/event-stream";
        const bool is_stream = response.get_header_value("Content-Type").compare(0, type.size(), type) == 0;
        return !is_stream || !response.content_provider_ ? ""
               : response.is_chunked_content_provider_   ? "3\r\n:\n\n\r\n"
                                                         : ":\n\n";
    }

    // Ends the handshake at once with text, which programs report as a wrong version of TLS.
    static bool refuse_tls(eagle_connection & connection) {
        LOG_WRN("a client speaks TLS, which this server does not: its address must begin with http://\n");
        const std::string text = "this server speaks no TLS: use http://\n";
        const std::string head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n";
        const std::string length = "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n";
        return connection.httplib::Stream::write(head + length + text) > 0;
    }

    // Names what is wrong in place of an answer that ended because a client of HTTP/1.0 has closed its side.
    static void explain_end(const httplib::Request & request, httplib::Response & response) {
        const char * reason = "a client of HTTP/1.0 must not close its side before it has the answer";
        const common_json error = {{"code", 400}, {"type", "invalid_request_error"}, {"message", reason}};
        response.status = 400;
        response.set_content(common_json{{"error", error}}.dump(), "application/json; charset=utf-8");
        eagle_write_error(request, response);
        response.headers.erase("Content-Length");
        response.set_header("Content-Length", std::to_string(response.body.size()));
    }

    // Clients of HTTP/1.0 know no chunks: a stream ends with its connection, and others do unless the client keeps
    // them.
    static void set_old_headers(const httplib::Request & request, httplib::Response & response) {
        const bool is_kept = httplib::detail::has_header_token(request.headers, "Connection", "keep-alive") &&
                             !httplib::detail::has_header_token(response.headers, "Connection", "close") &&
                             !response.is_chunked_content_provider_;
        if (!is_kept) {
            response.headers.erase("Keep-Alive");
        }
        if (response.is_chunked_content_provider_) {
            response.is_chunked_content_provider_ = false;
            response.headers.erase("Transfer-Encoding");
        }
        response.headers.erase("Connection");
        response.set_header("Connection", is_kept ? "keep-alive" : "close");
    }

    bool process_and_close_socket(socket_t socket) override {
        const bool ok = serve_guarded([&] { return serve(socket); });
        current() = nullptr;
        httplib::detail::drain_and_close_socket(socket);
        return ok;
    }

    bool serve(socket_t socket) {
        std::string remote, local;
        int remote_port = 0, local_port = 0;
        httplib::detail::get_remote_ip_and_port(socket, remote, remote_port);
        httplib::detail::get_local_ip_and_port(socket, local, local_port);
        eagle_connection connection(socket, read_timeout_sec_, write_timeout_sec_);
        current() = &connection;
        bool ok = false;
        for (size_t n_left = keep_alive_max_count_; n_left > 0 && !connection.is_last; n_left--) {
            if (!connection.is_readable() && !httplib::detail::keep_alive(svr_sock_, socket, keep_alive_timeout_sec_)) {
                break;
            }
            if (!connection.skip_lines()) {
                break;
            }
            if (!connection.is_readable()) {
                continue;
            }
            if (connection.begins_tls()) {
                return refuse_tls(connection);
            }
            bool is_closed = false;
            connection.set_request(nullptr);
            ok = process_request(connection, remote, remote_port, local, local_port, n_left == 1, is_closed,
                                 [&](httplib::Request & request) { connection.set_request(&request); });
            if (!ok || is_closed) {
                break;
            }
        }
        return ok;
    }
};
