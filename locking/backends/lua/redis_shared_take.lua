-- Acquires a place among the holders, or joins the queue; see redis_take.lua.
--
-- KEYS  see redis_shared.lua
-- ARGV  1 to 4 as in redis_take.lua; entry as in redis_shared.lua
--       5 slots
-- Returns what redis_take.lua returns, or {-slots} if the holders have another number of slots

local QUEUE_LIFE = 30000 -- ms, see redis_take.lua
local ttl, entry, slots = ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call('EXISTS', lock, queue) == 0 then
  local token = next_token(0)
  grant_shared(caller, ttl, token, slots)
  return {token, tonumber(ttl), 0, 0, 1}
end
drop_expired()
grant_waiting()
local holder, left = first_end()
local token = holder and grant_of(caller)
if token then
  left = tonumber(redis.call('ZSCORE', holders, caller)) - now_ms()
  return {tonumber(token), left, ticks(), 0, 0}
end
local known = holder and tonumber(redis.call('HGET', lock, 'slots'))
if known and slots > 0 and known ~= slots then
  return {-known, 0, 0, 0, 0}
end
if redis.call('LLEN', queue) == 0 and (not holder or is_free(slots)) then
  local new = next_token(0)
  grant_shared(caller, ttl, new, slots)
  return {new, tonumber(ttl), 0, 0, 1}
end
local place, is_new = 0, 1
if entry ~= '' then
  local found = redis.call('LPOS', queue, entry)
  is_new = found and 0 or 1
  place = found or redis.call('RPUSH', queue, entry) - 1
  redis.call('PEXPIRE', queue, QUEUE_LIFE)
end
return {0, left, ticks(), place, is_new, holder, (grant_of(holder))}
