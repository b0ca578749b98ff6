-- Moves admission forward, gives a customer a place if asked to, and returns the room's state.
--
-- KEYS  1 state   hash (see waiting_room/store.py)
--       2 places  hash    customer -> number in the order of arrival, from 1
--       3 order   string  of a drawn lottery: the position of each number, 8 hex digits each
-- ARGV  1 opening and 2 end of the sale, in ms; 3 units left
--       4 customer, or ''; 5 '1' to give the customer a place
-- Returns nil if Redis has no such state

local state, places, order = unpack(KEYS)
local opens, closes, left = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local customer, may_join = ARGV[4], ARGV[5] == '1'
local MAX_GAP = 10000 -- ms; after a longer interruption, admission does not catch up in a burst
local PERSON = 60000 -- credit of one admission: people per minute x ms
local KEEP = 7 * 24 * 3600 * 1000 -- ms for which the state is kept after the end of the sale

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local numbers = { 'joined', 'serving', 'credit', 'last', 'cutoff', 'drawn', 'inlet', 'expires' }
local values = redis.call('HMGET', state, unpack(numbers))
local room = {}
for i, name in ipairs(numbers) do
  room[name] = values[i] and tonumber(values[i])
end
local mode, paused, sold_out, message, message_zh, reason, changed = unpack(redis.call('HMGET',
  state, 'mode', 'paused', 'sold_out', 'message', 'message_zh', 'reason', 'changed'))
if not mode then
  return false
end

-- The list at the opening: those who are here now, but not the customer of this call.
if not room.cutoff and now >= opens then
  room.cutoff = room.joined
  redis.call('HSET', state, 'cutoff', room.cutoff)
end

local number = customer ~= '' and tonumber(redis.call('HGET', places, customer) or nil)
if may_join and not number and now < closes then
  number = room.joined + 1
  room.joined = number
  redis.call('HSET', places, customer, number)
  redis.call('HSET', state, 'joined', number)
  if number == 1 then
    room.expires = nil
  end
end
if room.expires ~= closes then
  redis.call('HSET', state, 'expires', closes)
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIREAT', key, closes + KEEP)
  end
end

local is_open = now >= opens and now < closes
if is_open and left <= 0 and not sold_out then
  sold_out = '1'
  redis.call('HSET', state, 'sold_out', sold_out)
end
if is_open and left > 0 and paused ~= '1' and (mode == 'arrival' or room.drawn) then
  -- Returned units are offered to the waiting list in its order: per second one person for each.
  local rate = sold_out and math.min(room.inlet, 60 * left) or room.inlet
  local elapsed = math.min(now - math.max(room.last, opens), MAX_GAP)
  room.credit = room.credit + math.max(elapsed, 0) * rate
  local admitted = math.min(math.floor(room.credit / PERSON), room.joined - room.serving)
  room.serving = room.serving + admitted
  room.credit = room.credit - admitted * PERSON
  if room.serving == room.joined then
    -- While no one waits, the admissions of one second are saved up for the next arrivals.
    room.credit = math.min(room.credit, math.max(rate * 1000, PERSON))
  end
end
if now ~= room.last then
  redis.call('HSET', state, 'last', now, 'serving', room.serving, 'credit', room.credit)
end

local position = number
if number and mode == 'lottery' then
  if not room.drawn and number <= (room.cutoff or number) then
    position = false
  elseif room.drawn and number <= room.cutoff then
    position = tonumber(redis.call('GETRANGE', order, 8 * number - 8, 8 * number - 1), 16)
  end
end
return { now, mode, room.joined, room.serving, room.inlet, paused == '1' and 1 or 0,
  room.cutoff or false, room.drawn or false, message or '', message_zh or '', reason or '',
  tonumber(changed or 0), number or false, position or false }
