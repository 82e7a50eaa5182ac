"""Loops of agents, ten turns of tools each, in langgraph and in OpenAI's Agents SDK: BASE_URL MODEL."""

import asyncio
import warnings
from typing import Literal

from checks import base_url, model, question, run

warnings.filterwarnings("ignore")

import agents
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai import AsyncOpenAI

TURNS = 10


def langgraph_over_chats():
    langgraph_loop(use_responses_api=False)


def langgraph_over_responses():
    langgraph_loop(use_responses_api=True)


def langgraph_loop(**settings):
    @tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tells the weather of a city."""
        return f"It is sunny in {city}."

    llm = ChatOpenAI(model=model, base_url=base_url + "/v1", api_key="unused", max_retries=0, max_tokens=400,
                     **settings)

    def called(state):
        return sum(isinstance(message, ToolMessage) for message in state["messages"])

    def think(state):
        choice = "any" if called(state) < TURNS else "none"
        bound = llm.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False)
        return {"messages": [bound.invoke(state["messages"])]}

    def goes_on(state):
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", goes_on)
    graph.add_edge("tools", "think")
    said = graph.compile().invoke({"messages": [HumanMessage(question)]}, {"recursion_limit": 3 * TURNS})
    messages = said["messages"]
    assert called(said) == TURNS and isinstance(messages[-1], AIMessage), messages
    assert messages[-1].text and not messages[-1].tool_calls, messages[-1]
    results = [message.content for message in messages if isinstance(message, ToolMessage)]
    assert all(result.startswith("It is sunny in") for result in results), results
    usages = [message.usage_metadata for message in messages if isinstance(message, AIMessage)]
    # Each turn begins with the turn before it.
    cached = [usage["input_token_details"]["cache_read"] for usage in usages]
    assert cached == sorted(cached) and cached[-1] > 0, cached


def agents_sdk_over_responses():
    client = AsyncOpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
    asyncio.run(agents_loop(agents.OpenAIResponsesModel(model=model, openai_client=client)))


def agents_sdk_over_chats():
    client = AsyncOpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0)
    asyncio.run(agents_loop(agents.OpenAIChatCompletionsModel(model=model, openai_client=client)))


async def agents_loop(backend):
    agents.set_tracing_disabled(True)
    asked = []

    @agents.function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return f"It is sunny in {city}."

    def enough(context, results):
        done = len(asked) >= TURNS
        return agents.ToolsToFinalOutputResult(is_final_output=done, final_output="done" if done else None)

    agent = agents.Agent(
        name="traveller", instructions="Tell where it is sunny.", model=backend, tools=[weather],
        model_settings=agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=400),
        reset_tool_choice=False, tool_use_behavior=enough,
    )
    result = await agents.Runner.run(agent, question, max_turns=TURNS + 1)
    assert result.final_output == "done" and len(asked) == TURNS, (result, asked)
    asked.clear()
    streamed = agents.Runner.run_streamed(agent, question, max_turns=TURNS + 1)
    kinds = {event.type async for event in streamed.stream_events()}
    assert "raw_response_event" in kinds and len(asked) == TURNS, (kinds, asked)


run(langgraph_over_chats, langgraph_over_responses, agents_sdk_over_chats, agents_sdk_over_responses)
