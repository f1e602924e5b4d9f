// hosts.h — virtual hosts (network namespaces, tests/lab/hosts). If they cannot be created (no
// root, no ip), the test prints a message and is skipped.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "tests/support.h"

namespace convoy {

class Hosts {
 public:
    explicit Hosts(int count) : set_(cat("test", getpid())) {
        made_ = geteuid() == 0 && access("tests/lab/hosts", X_OK) == 0 && script(cat("up ", count));
        if (!made_) MESSAGE("skipped: cannot create network namespaces");
    }
    ~Hosts() {
        if (made_) script("down");
    }
    bool made() const { return made_; }
    // said: a file for the output.
    bool run(int host, const std::string& command, const std::string& said = "/dev/null") {
        return script(cat("run ", host, " ", command), said);
    }
    // Plugs or unplugs the host's cable at the switch.
    bool plug(int host, bool in) {
        return shell(cat("ip netns exec ", set_, "-switch ip link set port", host,
                         in ? " up" : " down")) == 0;
    }
    // From now on the host receives nothing; what it sends still arrives.
    bool deafen(int host) {
        return shell(cat("ip netns exec ", set_, "-switch tc qdisc add dev port", host,
                         " root bfifo limit 1")) == 0;
    }
    // Adds a cable between two hosts, not through the switch; `name` is the interface on both ends.
    bool cable(int one, int other, const std::string& name) {
        return shell(cat("ip link add ", name, " netns ", set_, "-", one, " type veth peer name ",
                         name, " netns ", set_, "-", other)) == 0 &&
               run(one, cat("ip link set ", name, " up")) &&
               run(other, cat("ip link set ", name, " up"));
    }
    // Moves this process to the host and, if `names` is not empty, replaces /etc/hosts by it.
    void enter(int host, const std::string& names) const {
        const int space = open(cat("/var/run/netns/", set_, "-", host).c_str(), O_RDONLY);
        if (space < 0 || setns(space, CLONE_NEWNET) != 0) fail("cannot enter host ", host);
        if (names.empty()) return;
        const std::string file = cat("/tmp/", set_, "-hosts-", host);
        std::ofstream(file) << names << std::flush;
        if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount(file.c_str(), "/etc/hosts", "", MS_BIND, nullptr) != 0)
            fail("cannot replace /etc/hosts");
        unlink(file.c_str());
    }

 private:
    bool script(const std::string& arguments, const std::string& said = "/dev/null") {
        return shell(cat("CONVOY_HOSTS=", set_, " tests/lab/hosts ", arguments, " >", said,
                         " 2>&1")) == 0;
    }
    std::string set_;
    bool made_;
};

}  // namespace convoy
