// Place of the largest element of a vector, the first of equal ones; a beat is a whole vector.
// A tree of comparisons with a register behind each level: latency 1 + $clog2(elements) cycles,
// throughput 1 vector per cycle.
`default_nettype none

module fixed_argmax #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input element, bits, 1 or more
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 2,  // width of a place, bits: $clog2(elements) or more
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 3   // elements of a vector, 2 or more
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PARALLELISM_DIM_0 < 2) begin : g_refuse_size
    $error("fixed_argmax: a vector needs 2 elements of 1 bit or more, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_PRECISION_0);
  end
  if (DATA_OUT_0_PRECISION_0 < $clog2(DATA_IN_0_PARALLELISM_DIM_0)) begin : g_refuse_place
    $error("fixed_argmax: %0d bits number no %0d elements",
           DATA_OUT_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
`endif

  localparam int SIZE = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int PLACE = DATA_OUT_0_PRECISION_0;
  localparam int LEVELS = $clog2(SIZE);

  // Level k has the best of every 2**k elements in its lowest entries; level 0 is the vector, with
  // the sign bit turned so that codes compare as unsigned numbers.
  logic [(LEVELS+1)*SIZE*WIDTH-1:0] keys;
  logic [(LEVELS+1)*SIZE*PLACE-1:0] places;
  logic [LEVELS:0] valids;
  logic enable;

  assign valids[0] = data_in_0_valid;
  assign data_in_0_ready = enable;

  for (genvar i = 0; i < SIZE; i++) begin : g_element
    localparam logic [WIDTH-1:0] SIGN = WIDTH'(DATA_IN_0_IS_SIGNED) << (WIDTH - 1);
    assign keys[i*WIDTH+:WIDTH]   = data_in_0[i*WIDTH+:WIDTH] ^ SIGN;
    assign places[i*PLACE+:PLACE] = PLACE'(i);
  end

  for (genvar level = 1; level <= LEVELS; level++) begin : g_level
    localparam int BEFORE = (SIZE + 2 ** (level - 1) - 1) / 2 ** (level - 1);
    localparam int COUNT = (BEFORE + 1) / 2;
    for (genvar i = 0; i < SIZE; i++) begin : g_entry
      localparam int TO = level * SIZE + i;
      localparam int FROM = (level - 1) * SIZE + 2 * i;
      if (i < COUNT) begin : g_used
        if (2 * i + 1 < BEFORE) begin : g_pair
          logic is_second;
          assign is_second = keys[(FROM+1)*WIDTH+:WIDTH] > keys[FROM*WIDTH+:WIDTH];
          always_ff @(posedge clk) begin
            if (enable) begin
              keys[TO*WIDTH+:WIDTH] <=
                  is_second ? keys[(FROM+1)*WIDTH+:WIDTH] : keys[FROM*WIDTH+:WIDTH];
              places[TO*PLACE+:PLACE] <=
                  is_second ? places[(FROM+1)*PLACE+:PLACE] : places[FROM*PLACE+:PLACE];
            end
          end
        end else begin : g_single
          always_ff @(posedge clk) begin
            if (enable) begin
              keys[TO*WIDTH+:WIDTH]   <= keys[FROM*WIDTH+:WIDTH];
              places[TO*PLACE+:PLACE] <= places[FROM*PLACE+:PLACE];
            end
          end
        end
      end else begin : g_unused
        assign keys[TO*WIDTH+:WIDTH]   = '0;
        assign places[TO*PLACE+:PLACE] = '0;
      end
    end
    always_ff @(posedge clk) begin
      if (enable) valids[level] <= valids[level-1];
      if (rst) valids[level] <= 1'b0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(PLACE)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (places[LEVELS*SIZE*PLACE+:PLACE]),
      .data_in_0_valid (valids[LEVELS]),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  wire logic unused_ok = &{1'b0, keys, places};  // the largest element itself

endmodule

`default_nettype wire
