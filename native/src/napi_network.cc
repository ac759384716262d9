#include "label.h"
#include "napi_addon.h"
#include "net_ops.h"
#include "passt_repair.h"

namespace privsep {

namespace {

constexpr size_t kMaxForbidden = 16;
constexpr size_t kMaxLinks = 64;
constexpr size_t kMaxPorts = 1024;
constexpr size_t kMaxLinkName = 15;
constexpr size_t kMaxAddress = 64;

std::vector<NamespaceId> read_forbidden(Arguments& arguments, Napi::Value value) {
  Napi::Array list = arguments.array(value, "forbidden", kMaxForbidden);
  std::vector<NamespaceId> ids;
  for (uint32_t i = 0; !arguments.error() && i < list.Length(); ++i) {
    InodeId inode = arguments.inode(list.Get(i), "forbidden");
    ids.push_back({inode.dev, inode.ino});
  }
  return ids;
}

GuestNetwork read_guest_network(Arguments& arguments, Napi::Value value, const char* name) {
  Napi::Object object = arguments.object(value, name);
  return {arguments.string(object.Get("network"), name, kMaxAddress),
          static_cast<uint32_t>(arguments.integer(object.Get("prefixLength"), name, 0, 128))};
}

ForwardedPort read_port(Arguments& arguments, Napi::Value value) {
  Napi::Object object = arguments.object(value, "port");
  ForwardedPort port;
  std::string protocol = arguments.string(object.Get("protocol"), "port.protocol", 4);
  if (protocol == "udp") {
    port.protocol = Protocol::kUdp;
  } else if (protocol == "sctp") {
    port.protocol = Protocol::kSctp;
  } else if (protocol != "tcp") {
    arguments.fail(Error::refusal(EINVAL, "argument port.protocol"));
  }
  port.port = static_cast<uint32_t>(arguments.integer(object.Get("port"), "port.port", 1, 65535));
  port.end_port = static_cast<uint32_t>(arguments.integer(object.Get("endPort"), "port.endPort", 0, 65535));
  return port;
}

MasqueradePlan read_masquerade(Arguments& arguments, Napi::Object binding) {
  MasqueradePlan plan;
  plan.ipv4 = read_guest_network(arguments, binding.Get("ipv4"), "binding.ipv4");
  plan.ipv6 = read_guest_network(arguments, binding.Get("ipv6"), "binding.ipv6");
  Napi::Array ports = arguments.array(binding.Get("ports"), "binding.ports", kMaxPorts);
  for (uint32_t i = 0; !arguments.error() && i < ports.Length(); ++i) {
    plan.ports.push_back(read_port(arguments, ports.Get(i)));
  }
  plan.istio = arguments.boolean(binding.Get("istio"), "binding.istio");
  plan.migration_over_tcp = arguments.boolean(binding.Get("migrationOverTcp"), "binding.migrationOverTcp");
  return plan;
}

AttachmentPlan read_attachment(Arguments& arguments, Napi::Value value) {
  Napi::Object object = arguments.object(value, "attachment");
  AttachmentPlan plan;
  plan.pod_interface = arguments.string(object.Get("podInterface"), "attachment.podInterface", kMaxLinkName);
  plan.primary = arguments.boolean(object.Get("primary"), "attachment.primary");
  plan.index = static_cast<uint32_t>(arguments.integer(object.Get("index"), "attachment.index", 0, 99));
  plan.queues = static_cast<uint32_t>(arguments.integer(object.Get("queues"), "attachment.queues", 0, 256));
  Napi::Object binding = arguments.object(object.Get("binding"), "attachment.binding");
  std::string kind = arguments.string(binding.Get("kind"), "binding.kind", 16);
  if (kind == "masquerade") {
    plan.binding = read_masquerade(arguments, binding);
  } else if (kind == "bridge" || kind == "managed-tap") {
    plan.binding = BridgePlan{kind == "bridge"};
  } else {
    arguments.fail(Error::refusal(EINVAL, "argument binding.kind"));
  }
  return plan;
}

NetworkPlan read_plan(Arguments& arguments, Napi::Value value) {
  Napi::Object object = arguments.object(value, "plan");
  NetworkPlan plan;
  Napi::Array attachments = arguments.array(object.Get("attachments"), "plan.attachments", kMaxLinks);
  for (uint32_t i = 0; !arguments.error() && i < attachments.Length(); ++i) {
    plan.attachments.push_back(read_attachment(arguments, attachments.Get(i)));
  }
  Napi::Array detachments = arguments.array(object.Get("detachments"), "plan.detachments", kMaxLinks);
  for (uint32_t i = 0; !arguments.error() && i < detachments.Length(); ++i) {
    Napi::Object detachment = arguments.object(detachments.Get(i), "detachment");
    plan.detachments.push_back(
        {arguments.string(detachment.Get("podInterface"), "detachment.podInterface", kMaxLinkName),
         arguments.boolean(detachment.Get("primary"), "detachment.primary")});
  }
  plan.uid = arguments.id(object.Get("uid"), "plan.uid");
  plan.gid = arguments.id(object.Get("gid"), "plan.gid");
  if (object.Has("passtGid")) plan.passt_gid = arguments.id(object.Get("passtGid"), "plan.passtGid");
  return plan;
}

Napi::Object link_object(Napi::Env env, const LinkState& link) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("index", link.index);
  object.Set("name", link.name);
  object.Set("kind", link.kind);
  object.Set("operstate", link.operstate);
  object.Set("up", link.up);
  object.Set("mac", link.mac);
  object.Set("mtu", link.mtu);
  object.Set("controller", link.controller);
  Napi::Array addresses = Napi::Array::New(env, link.addresses.size());
  for (uint32_t i = 0; i < link.addresses.size(); ++i) {
    Napi::Object address = Napi::Object::New(env);
    address.Set("ip", link.addresses[i].ip);
    address.Set("prefixLength", link.addresses[i].prefix_length);
    addresses.Set(i, address);
  }
  object.Set("addresses", addresses);
  if (link.port_learning) object.Set("portLearning", *link.port_learning);
  object.Set("routeLocalnet", link.route_localnet);
  return object;
}

Napi::Value state_object(Napi::Env env, NetworkState& state) {
  Napi::Object object = Napi::Object::New(env);
  Napi::Array links = Napi::Array::New(env, state.links.size());
  for (uint32_t i = 0; i < state.links.size(); ++i) links.Set(i, link_object(env, state.links[i]));
  object.Set("links", links);
  Napi::Array routes = Napi::Array::New(env, state.routes.size());
  for (uint32_t i = 0; i < state.routes.size(); ++i) {
    Napi::Object route = Napi::Object::New(env);
    route.Set("destination", state.routes[i].destination);
    route.Set("gateway", state.routes[i].gateway);
    route.Set("linkIndex", state.routes[i].link_index);
    route.Set("metric", state.routes[i].metric);
    routes.Set(i, route);
  }
  object.Set("routes", routes);
  Napi::Object sysctls = Napi::Object::New(env);
  sysctls.Set("ipv4ArpIgnore", state.sysctls.ipv4_arp_ignore);
  sysctls.Set("ipv4Forwarding", state.sysctls.ipv4_forwarding);
  sysctls.Set("ipv6Forwarding", state.sysctls.ipv6_forwarding);
  sysctls.Set("ipv4PingGroupStart", state.sysctls.ipv4_ping_group_start);
  sysctls.Set("ipv4PingGroupEnd", state.sysctls.ipv4_ping_group_end);
  sysctls.Set("ipv4UnprivilegedPortStart", state.sysctls.ipv4_unprivileged_port_start);
  object.Set("sysctls", sysctls);
  return object;
}

// With a launcher's label the policy's rules for its own taps apply. While nothing is enforced it may be missing.
Result<std::optional<TapLabel>> tap_label(const Launcher& launcher, int directory, bool required,
                                          const Deadline& deadline) {
  auto context = launcher_context(launcher);
  if (context) return std::optional<TapLabel>({*context, required, directory, deadline});
  if (required || context.error().code == ESRCH) return context.error();
  return std::optional<TapLabel>();
}

// observeNetwork(call, launcher, forbidden)
Napi::Value observe_network_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  auto forbidden = read_forbidden(arguments, info[2]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), forbidden](Home&, const Deadline& deadline) -> Result<NetworkState> {
        auto alive = check_alive(launcher.pidfd.get(), "launcher");
        if (!alive) return alive.error();
        return observe_network(launcher.netns.get(), forbidden, deadline);
      },
      state_object);
}

// applyNetwork(call, launcher, forbidden, plan, selinuxEnforces)
Napi::Value apply_network_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  auto forbidden = read_forbidden(arguments, info[2]);
  NetworkPlan plan = read_plan(arguments, info[3]);
  bool enforces = arguments.boolean(info[4], "selinuxEnforces");
  // The addon outlives the privileged threads.
  int directory = addon.labelled_taps.get();
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), forbidden, plan, enforces, directory](
          Home&, const Deadline& deadline) mutable -> Result<bool> {
        auto alive = check_alive(launcher.pidfd.get(), "launcher");
        if (!alive) return alive.error();
        if (directory >= 0 && !plan.attachments.empty()) {
          auto label = tap_label(launcher, directory, enforces, deadline);
          if (!label) return label.error();
          plan.tap_label = std::move(*label);
        }
        plan.deadline = deadline;
        return apply_network(launcher.netns.get(), forbidden, plan);
      },
      [](Napi::Env env, bool& changed) -> Napi::Value { return Napi::Boolean::New(env, changed); });
}

// observeNat(call, launcher, forbidden)
Napi::Value observe_nat_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  auto forbidden = read_forbidden(arguments, info[2]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), forbidden](
          Home&, const Deadline& deadline) -> Result<std::vector<NatChainState>> {
        auto alive = check_alive(launcher.pidfd.get(), "launcher");
        if (!alive) return alive.error();
        return observe_nat(launcher.netns.get(), forbidden, deadline);
      },
      [](Napi::Env env, std::vector<NatChainState>& chains) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, chains.size());
        for (uint32_t i = 0; i < chains.size(); ++i) {
          Napi::Object chain = Napi::Object::New(env);
          chain.Set("family", chains[i].family);
          chain.Set("name", chains[i].name);
          chain.Set("hook", chains[i].hook);
          chain.Set("rules", chains[i].rules);
          list.Set(i, chain);
        }
        return list;
      });
}

// pendingNetworkChanges(call, launcher, forbidden, plan)
Napi::Value pending_network_changes_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Launcher launcher = arguments.launcher(info[1]);
  auto forbidden = read_forbidden(arguments, info[2]);
  NetworkPlan plan = read_plan(arguments, info[3]);
  return addon.privileged(
      arguments,
      [launcher = std::move(launcher), forbidden, plan](
          Home&, const Deadline& deadline) mutable -> Result<std::vector<std::string>> {
        auto alive = check_alive(launcher.pidfd.get(), "launcher");
        if (!alive) return alive.error();
        plan.deadline = deadline;
        return pending_changes(launcher.netns.get(), forbidden, plan);
      },
      [](Napi::Env env, std::vector<std::string>& operations) -> Napi::Value {
        Napi::Array list = Napi::Array::New(env, operations.size());
        for (uint32_t i = 0; i < operations.size(); ++i) list.Set(i, operations[i]);
        return list;
      });
}

// repairPasst(call, podsDir, podUid, launcher, side)
Napi::Value repair_passt_call(Addon& addon, const Napi::CallbackInfo& info) {
  Arguments arguments(info);
  Fd pods = arguments.fd(info[1], "podsDir");
  auto pod = arguments.pod_uid(info[2]);
  Launcher launcher = arguments.launcher(info[3]);
  std::string side = arguments.string(info[4], "side", 6);
  if (side != "source" && side != "target") arguments.fail(Error::refusal(EINVAL, "argument side"));
  // While the call runs the pool waits for it to end.
  int cancel = addon.pool ? addon.pool->stopping_fd() : -1;
  return addon.privileged(
      arguments,
      [pods = std::move(pods), pod, launcher = std::move(launcher), target = side == "target", cancel](
          Home&, const Deadline& deadline) {
        auto which = target ? RepairSide::kTarget : RepairSide::kSource;
        return repair_passt(pods.get(), *pod, launcher, which, cancel, deadline);
      },
      [](Napi::Env env, uint64_t& sockets) -> Napi::Value {
        return Napi::Number::New(env, static_cast<double>(sockets));
      },
      PrivilegedPool::Lone::kProcess);
}

}  // namespace

void define_network(Addon& addon, Napi::Object exports) {
  addon.define(exports, "observeNetwork", observe_network_call);
  addon.define(exports, "repairPasst", repair_passt_call);
  addon.define(exports, "applyNetwork", apply_network_call);
  addon.define(exports, "observeNat", observe_nat_call);
  addon.define(exports, "pendingNetworkChanges", pending_network_changes_call);
}

}  // namespace privsep
