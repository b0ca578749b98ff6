-- Acquires the lock, or joins the queue and returns how long the lock stays held. It is safe to run
-- twice: the second run finds the grant or the queue entry of the first.
--
-- KEYS  1 lock, 2 queue, 3 clock (see redis_queue.lua, to which this is appended)
-- ARGV  1 owner, 2 floor (see there)
--       3 ttl    ms that the grant lasts
--       4 entry  the queue entry, "channel ttl floor owner"; '' does not wait
-- Returns {token or 0, ms left of the present grant, ticks now, place in the queue,
--          1 if neither a grant nor an entry of the caller was found, else 0},
--          and the holder's owner and token

local QUEUE_LIFE = 30000 -- ms; the first waiter runs this again after 10 s at the latest
local ttl, entry = ARGV[3], ARGV[4]

local state = redis.call('HMGET', lock, 'owner', 'token', 'ttl')
if not state[1] then
  if not grant_next() then
    local token = next_token(0)
    grant(caller, ttl, token)
    return {token, tonumber(ttl), 0, 0, 1}
  end
  state = redis.call('HMGET', lock, 'owner', 'token', 'ttl')
end

local holder, token = state[1], state[2]
local left = redis.call('PTTL', lock)
-- If the clock was set back, the grant would last longer than its ttl.
local longest = tonumber(state[3]) or 1000
if left < 0 or left > longest then
  redis.call('PEXPIRE', lock, longest)
  left = longest
end
if holder == caller then
  return {tonumber(token), left, ticks(), 0, 0}
end
if entry == '' then
  return {0, left, 0, 0, 1, holder, token}
end
local place = redis.call('LPOS', queue, entry)
local is_new = (place or 0) == 0 and 1 or 0
if is_new == 1 then
  place = redis.call('RPUSH', queue, entry) - 1
  if place == 0 then
    place = redis.call('LPUSH', queue, unqueued(holder)) - 1
  elseif place == 1 then
    redis.call('LSET', queue, 0, unqueued(holder)) -- it may be that of an earlier holder
  end
end
redis.call('PEXPIRE', queue, QUEUE_LIFE)
return {0, left, ticks(), place - 1, is_new, holder, token}
